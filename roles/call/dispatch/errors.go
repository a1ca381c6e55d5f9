package dispatch

import (
	"errors"
	"fmt"

	"github.com/cnibox/cnibox/roles"
)

// ErrIO means that reading standard input or writing standard output failed (code 5).
var ErrIO = errors.New("input or output failed")

// DelegateError is the failure of a plugin that was executed.
type DelegateError struct {
	// Type is the plugin's CNI type, File the path of the executed file.
	Type, File string
	Verb       roles.Verb
	// Code, Msg and Details are copied from the plugin's error object. They are zero
	// if the plugin printed none.
	Code         uint
	Msg, Details string
	// Err is the process's exit error, or says why its result is not valid.
	Err error
}

// Error returns "execute FILE for VERB: message".
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

// Unwrap returns Err.
func (e *DelegateError) Unwrap() error { return e.Err }
