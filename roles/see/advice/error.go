package advice

import "github.com/cnibox/cnibox/roles"

// Repair makes objects of attachments again.
const Repair = "cnibox repair"

// Error is an error with the command that helps.
type Error struct {
	Err error
	Try string
}

// Error implements error.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the error without the command.
func (e *Error) Unwrap() error { return e.Err }

// With adds a command to an error.
func With(err error, try string) error {
	if err == nil || try == "" {
		return err
	}
	return &Error{err, try}
}

// Usagef returns an error for wrong arguments with the command that helps.
func Usagef(try, format string, a ...any) error { return With(roles.Usagef(format, a...), try) }
