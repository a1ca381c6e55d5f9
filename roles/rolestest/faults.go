package rolestest

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/roles"
)

// FaultyConf is a configuration with the paths of its faults. A valid one has no paths.
type FaultyConf struct {
	Name, Conf string
	Paths      []string
}

// CheckFaults asserts that a role reports exactly these faults, all at once.
func CheckFaults(t *testing.T, role roles.Role, confs []FaultyConf) {
	t.Helper()
	for _, c := range confs {
		t.Run(c.Name, func(t *testing.T) {
			_, err := role.New([]byte(c.Conf))
			if diff := cmp.Diff(c.Paths, paths(err)); diff != "" {
				t.Errorf("faults (-want +have):\n%s\n%v", diff, err)
			}
			if err != nil && !errors.Is(err, roles.ErrConf) {
				t.Errorf("%v is not ErrConf", err)
			}
		})
	}
}

// paths lists the paths of all faults in an error.
func paths(err error) []string {
	var one *roles.ConfError
	if j, ok := err.(interface{ Unwrap() []error }); ok { //nolint:errorlint // this is the walk itself
		var out []string
		for _, e := range j.Unwrap() {
			out = append(out, paths(e)...)
		}
		return out
	}
	if errors.As(err, &one) {
		return []string{one.Path}
	}
	return nil
}
