package dispatch

import (
	"errors"
	"fmt"

	"github.com/cnibox/cnibox/roles"
)

// ErrIO means that standard input or output cannot be used (code 5).
var ErrIO = errors.New("input or output failed")

// DelegateError is the failure of a plugin that was executed.
type DelegateError struct {
	// Type is the plugin's CNI type, File what was executed.
	Type, File string
	Verb       roles.Verb
	// Code, Msg and Details are those of the plugin's error object. Code is 0
	// when it printed none.
	Code         uint
	Msg, Details string
	// Err is how the process ended.
	Err error
}

// Error is "execute FILE for VERB: message".
func (e *DelegateError) Error() string {
	msg := e.Msg
	if msg == "" {
		msg = "no error object"
		if e.Err != nil {
			msg = e.Err.Error()
		}
	}
	return fmt.Sprintf("execute %q for %s: %s", e.File, e.Verb, msg)
}

// Unwrap is how the process ended.
func (e *DelegateError) Unwrap() error { return e.Err }
