package roles

import (
	"fmt"
	"strings"

	"github.com/cnibox/cnibox/netops"
)

// Differences returns an error that wraps ErrCheck and lists the differences that Verify
// found. It returns nil if there are none.
func Differences(diffs []netops.Difference) error {
	if len(diffs) == 0 {
		return nil
	}
	lines := make([]string, len(diffs))
	for i, d := range diffs {
		lines[i] = fmt.Sprintf("%s: want %s, have %s", d.Object, d.Want, d.Have)
	}
	return fmt.Errorf("%w: %s", ErrCheck, strings.Join(lines, "; "))
}
