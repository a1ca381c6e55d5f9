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
	// ErrExhausted: an address pool has no free address; the runtime may try again (code
	// 11).
	ErrExhausted = errors.New("no addresses left")
	// ErrConf: the network configuration is invalid (code 7). ConfError wraps it.
	ErrConf = errors.New("invalid configuration")
	// ErrDecode: input or stored data could not be decoded (code 6).
	ErrDecode = errors.New("cannot decode")
	// ErrEnv: an environment variable is missing or invalid (code 4).
	ErrEnv = errors.New("invalid environment")
	// ErrNetns: the network namespace cannot be used (code 8).
	ErrNetns = errors.New("invalid network namespace")
	// ErrVersion: the CNI version is not supported, or lacks the verb (code 1).
	ErrVersion = errors.New("incompatible CNI version")
	// ErrUnknownContainer: the container is not known; the runtime need not clean up (code 3).
	ErrUnknownContainer = errors.New("unknown container")
	// ErrUnsupportedField: a field's value is not supported; the error names the field
	// and the value (code 2).
	ErrUnsupportedField = errors.New("unsupported field")
	// ErrAttached: the container has this interface on this network already (code 105).
	ErrAttached = errors.New("already attached")
	// ErrCheck: CHECK found differences (code 106).
	ErrCheck = errors.New("attachment differs from its specification")
	// ErrNoPlugin: no plugin of that type on CNI_PATH (code 107).
	ErrNoPlugin = errors.New("plugin not found")
	// ErrUnplanned: the plugin cannot predict what its ADD would do (code 116).
	ErrUnplanned = errors.New("cannot be planned")
	// ErrUsage: flags or arguments of a command or a daemon are wrong; the process exits
	// with 2 (code 117). Usagef makes an ErrUsage.
	ErrUsage = errors.New("called in the wrong way")
	// ErrPanic: the role panicked, and its changes were undone (code 108).
	ErrPanic = errors.New("internal error")
)

// ConfError is one fault of a network configuration.
type ConfError struct {
	// Path is the JSON path: "ipam.ranges[0].subnet".
	Path string
	// Reason says what is wrong and how to correct it.
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
	// Reason says what is wrong and how to correct it.
	Reason string
}

// Error is "name: reason".
func (e *EnvError) Error() string { return e.Name + ": " + e.Reason }

// Is makes every EnvError an ErrEnv.
func (e *EnvError) Is(target error) bool { return target == ErrEnv }

// usageError is an error in a command line.
type usageError struct{ error }

// Usagef makes an ErrUsage about the flags or arguments of a command or a daemon. The
// error has the formatted text only, and wraps the operands of %w.
func Usagef(format string, a ...any) error { return usageError{fmt.Errorf(format, a...)} }

// Is makes every usageError an ErrUsage.
func (usageError) Is(target error) bool { return target == ErrUsage }

// Unwrap returns the formatted error.
func (e usageError) Unwrap() error { return e.error }

// Warning ends a command that worked. What it printed fails in some cases, or will fail; the process exits with 4.
type Warning string

func (w Warning) Error() string { return string(w) }

// UndoError means that the changes of a failed ADD could not be undone completely. If the
// error of a failed ADD wraps no UndoError, nothing is left.
type UndoError struct{ Err error }

// Error is "clean up: reason".
func (e *UndoError) Error() string { return "clean up: " + e.Err.Error() }

// Unwrap returns the reason.
func (e *UndoError) Unwrap() error { return e.Err }

// Faults collects every fault of a configuration, so that all are reported at once.
type Faults struct{ list []error }

// Addf adds a fault at a JSON path.
func (f *Faults) Addf(path, format string, a ...any) {
	f.list = append(f.list, &ConfError{Path: path, Reason: fmt.Sprintf(format, a...)})
}

// Check adds an error as a fault at a JSON path, and reports whether there is none.
func (f *Faults) Check(path string, err error) bool {
	if err != nil {
		f.Addf(path, "%v", err)
	}
	return err == nil
}

// CheckLink adds a fault if an interface cannot have the name. "" is none.
func (f *Faults) CheckLink(path, name string) {
	if name != "" {
		f.Check(path, LinkName(name))
	}
}

// Err returns all faults joined, or nil if there are none.
func (f *Faults) Err() error { return errors.Join(f.list...) }

// JoinFaults joins faults with those that were found before. It leaves out a fault at a
// JSON path that already has one: a value of the wrong type would also be reported as
// missing.
func JoinFaults(found, more error) error {
	all := SplitJoined(found)
	var reported []string
	for _, e := range all {
		if c := (*ConfError)(nil); errors.As(e, &c) {
			reported = append(reported, c.Path)
		}
	}
	for _, e := range SplitJoined(more) {
		c := (*ConfError)(nil)
		same := func(path string) bool { return within(c.Path, path) || within(path, c.Path) }
		if !errors.As(e, &c) || !slices.ContainsFunc(reported, same) {
			all = append(all, e)
		}
	}
	return errors.Join(all...)
}

// within reports whether a JSON path equals outer or leads into it. It ignores list
// indexes, because encoding/json does not report them.
func within(path, outer string) bool {
	path, outer = withoutIndexes(path), withoutIndexes(outer)
	return path == outer || strings.HasPrefix(path, outer+".")
}

// withoutIndexes returns a JSON path without list indexes: "ranges.subnet" for
// "ranges[0].subnet".
func withoutIndexes(path string) string {
	for {
		before, rest, listed := strings.Cut(path, "[")
		_, after, closed := strings.Cut(rest, "]")
		if !listed || !closed {
			return path
		}
		path = before + after
	}
}

// SplitJoined returns the errors that errors.Join joined, recursively. Any other error is a
// list of one; nil is an empty list.
func SplitJoined(err error) []error {
	if err == nil {
		return nil
	}
	j, ok := err.(interface{ Unwrap() []error }) //nolint:errorlint // only the outermost error is split
	if !ok {
		return []error{err}
	}
	var texts []string
	var out []error
	for _, e := range j.Unwrap() {
		texts = append(texts, e.Error())
		out = append(out, SplitJoined(e)...)
	}
	if err.Error() != strings.Join(texts, "\n") { // fmt.Errorf with several %w
		return []error{err}
	}
	return out
}
