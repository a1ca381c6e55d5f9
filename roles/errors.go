package roles

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

var (
	// ErrTryAgain asks the runtime to repeat the call later (CNI code 11).
	ErrTryAgain = errors.New("try again later")
	// ErrNotAvailable: ADD cannot be served (STATUS code 50).
	ErrNotAvailable = errors.New("not available")
	// ErrLimited: ADD cannot be served and existing containers may have
	// limited connectivity (STATUS code 51).
	ErrLimited = errors.New("not available, existing containers may be affected")
	// ErrExhausted: an address pool has nothing left; the runtime may try again (code 11).
	ErrExhausted = errors.New("no addresses left")
	// ErrConf: the network configuration is invalid (code 7). ConfError wraps it.
	ErrConf = errors.New("invalid configuration")
	// ErrDecode: something could not be decoded (code 6).
	ErrDecode = errors.New("cannot decode")
	// ErrEnv: an environment variable is missing or invalid (code 4).
	ErrEnv = errors.New("invalid environment")
	// ErrNetns: the network namespace cannot be used (code 8).
	ErrNetns = errors.New("invalid network namespace")
	// ErrVersion: the CNI version is not supported, or lacks the verb (code 1).
	ErrVersion = errors.New("incompatible CNI version")
	// ErrUnknownContainer: the container is not known; the runtime need not clean up (code 3).
	ErrUnknownContainer = errors.New("unknown container")
	// ErrUnsupportedField: a field's value is not supported; the text names both (code 2).
	ErrUnsupportedField = errors.New("unsupported field")
	// ErrAttached: the container has this interface on this network already (code 105).
	ErrAttached = errors.New("already attached")
	// ErrCheck: CHECK found differences (code 106).
	ErrCheck = errors.New("not as it was made")
	// ErrNoPlugin: no plugin of that type on CNI_PATH (code 107).
	ErrNoPlugin = errors.New("plugin not found")
	// ErrUnplanned: the plugin cannot tell what it would do (code 116).
	ErrUnplanned = errors.New("cannot be planned")
	// ErrUsage: a verb of the command line or a daemon was called in the wrong way; the
	// process exits with 2 (code 117). Usagef makes one.
	ErrUsage = errors.New("called in the wrong way")
	// ErrPanic: the role has a defect; what it did was undone (code 108).
	ErrPanic = errors.New("internal error")
)

// ConfError is one fault of a network configuration.
type ConfError struct {
	// Path is the JSON path: "ipam.ranges[0].subnet".
	Path string
	// Reason says what is wrong and what would be right.
	Reason string
}

// Error is "path: reason".
func (e *ConfError) Error() string { return e.Path + ": " + e.Reason }

// Is makes every ConfError an ErrConf.
func (e *ConfError) Is(target error) bool { return target == ErrConf }

// EnvError is a value from the environment that cannot be used.
type EnvError struct {
	// Name is the variable, or "CNI_ARGS: KEY".
	Name string
	// Reason says what is wrong and what would be right.
	Reason string
}

// Error is "name: reason".
func (e *EnvError) Error() string { return e.Name + ": " + e.Reason }

// Is makes every EnvError an ErrEnv.
func (e *EnvError) Is(target error) bool { return target == ErrEnv }

// usageError is an error of who typed a command line.
type usageError struct{ error }

// Usagef tells what is wrong with the flags or arguments of a verb or a daemon, and what
// would be right. It is an ErrUsage, which is not in its text, and wraps what %w names.
func Usagef(format string, a ...any) error { return usageError{fmt.Errorf(format, a...)} }

// Is makes it an ErrUsage.
func (usageError) Is(target error) bool { return target == ErrUsage }

// Unwrap is the error within.
func (e usageError) Unwrap() error { return e.error }

// UndoError tells that what a failed ADD had done could not be undone: something may
// be left. An error without one says that nothing is.
type UndoError struct{ Err error }

// Error is "clean up: reason".
func (e *UndoError) Error() string { return "clean up: " + e.Err.Error() }

// Unwrap is the reason.
func (e *UndoError) Unwrap() error { return e.Err }

// Faults collects every fault of a configuration, so that all are told at once.
type Faults struct{ list []error }

// Addf notes a fault at a JSON path.
func (f *Faults) Addf(path, format string, a ...any) {
	f.list = append(f.list, &ConfError{Path: path, Reason: fmt.Sprintf(format, a...)})
}

// Err is nil without faults, else all of them joined.
func (f *Faults) Err() error { return errors.Join(f.list...) }

// MoreFaults adds faults to those that a configuration was found to have before,
// but for those of the same places: a value of the wrong type may be missed as well.
func MoreFaults(found, more error) error {
	all := flat(found)
	var told []string
	for _, e := range all {
		if c := (*ConfError)(nil); errors.As(e, &c) {
			told = append(told, c.Path)
		}
	}
	for _, e := range flat(more) {
		c := (*ConfError)(nil)
		same := func(path string) bool { return within(c.Path, path) || within(path, c.Path) }
		if !errors.As(e, &c) || !slices.ContainsFunc(told, same) {
			all = append(all, e)
		}
	}
	return errors.Join(all...)
}

// within tells whether a JSON path is another one, or leads into it. A value of the
// wrong type is told without its place in a list.
func within(path, outer string) bool {
	path, outer = withoutPlaces(path), withoutPlaces(outer)
	return path == outer || strings.HasPrefix(path, outer+".")
}

// withoutPlaces is a JSON path without places in lists: "ranges.subnet" for
// "ranges[0].subnet".
func withoutPlaces(path string) string {
	for {
		before, rest, listed := strings.Cut(path, "[")
		_, after, closed := strings.Cut(rest, "]")
		if !listed || !closed {
			return path
		}
		path = before + after
	}
}

// flat lists what Faults.Err joins.
func flat(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok { //nolint:errorlint // what wraps a list is none
		return joined.Unwrap()
	}
	if err == nil {
		return nil
	}
	return []error{err}
}
