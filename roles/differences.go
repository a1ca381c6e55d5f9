package roles

import (
	"fmt"
	"strings"

	"github.com/cnibox/cnibox/netops"
)

// CheckError is an ErrCheck with the differences that Verify found.
type CheckError struct{ Differences []netops.Difference }

// Differences returns a CheckError, or nil if there are no differences.
func Differences(diffs []netops.Difference) error {
	if len(diffs) == 0 {
		return nil
	}
	return &CheckError{diffs}
}

// Error lists the differences.
func (e *CheckError) Error() string {
	lines := make([]string, len(e.Differences))
	for i, d := range e.Differences {
		lines[i] = fmt.Sprintf("%s: want %s, have %s", d.Object, d.Want, d.Have)
	}
	return fmt.Sprintf("%v: %s", ErrCheck, strings.Join(lines, "; "))
}

// Is makes every CheckError an ErrCheck.
func (e *CheckError) Is(target error) bool { return target == ErrCheck }
