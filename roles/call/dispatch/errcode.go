package dispatch

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"unicode/utf8"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// Codes of error objects. Codes below 100 are the spec's (1.1.0, section 5), the
// others are cnibox's.
const (
	codeVersion          = 1
	codeUnsupportedField = 2
	codeUnknownContainer = 3
	codeEnv              = 4
	codeIO               = 5
	codeDecode           = 6
	codeConf             = 7
	codeNetns            = 8
	codeTryAgain         = 11
	codeNotAvailable     = 50
	codeLimited          = 51
	codeGeneral          = 100
)

// codeRow is the code of error objects for errors that wrap err.
type codeRow struct {
	err  error
	code uint
}

// errorCodes returns the table of codes. Every exported sentinel error has a row.
func errorCodes() []codeRow {
	return []codeRow{
		{roles.ErrVersion, codeVersion},
		{roles.ErrUnsupportedField, codeUnsupportedField},
		{roles.ErrUnknownContainer, codeUnknownContainer},
		{roles.ErrEnv, codeEnv},
		{ErrIO, codeIO},
		{store.ErrUnwritable, codeIO},
		{roles.ErrDecode, codeDecode},
		{roles.ErrConf, codeConf},
		{roles.ErrNetns, codeNetns},
		{netops.ErrNoNetns, codeNetns},
		{roles.ErrTryAgain, codeTryAgain},
		{roles.ErrExhausted, codeTryAgain},
		{store.ErrBusy, codeTryAgain},
		{netops.ErrBusy, codeTryAgain},
		{context.Canceled, codeTryAgain},
		{context.DeadlineExceeded, codeTryAgain},
		{roles.ErrNotAvailable, codeNotAvailable},
		{roles.ErrLimited, codeLimited},
		{netops.ErrNotExist, 101},
		{netops.ErrExists, 102},
		{netops.ErrConflict, 103},
		{netops.ErrNotSupported, 104},
		{roles.ErrAttached, 105},
		{roles.ErrCheck, 106},
		{roles.ErrNoPlugin, 107},
		{roles.ErrPanic, 108},
		{netops.ErrPermission, 109},
		{netops.ErrInvalid, 110},
		{store.ErrNotFound, 111},
		{store.ErrTaken, 112},
		{store.ErrDamaged, 113},
		{store.ErrSchema, 114},
		{store.ErrInvalid, 115},
		{roles.ErrUnplanned, 116},
		{roles.ErrUsage, 117},
	}
}

// errorObject is the document that a plugin prints when it fails (CNI spec 1.1.0,
// section 5).
type errorObject struct {
	CNIVersion string `json:"cniVersion"`
	Code       uint   `json:"code"`
	Msg        string `json:"msg"`
	Details    string `json:"details,omitempty"`
}

// newErrorObject makes the error object for an error. Of several joined errors, the
// first gives the code and the message, and the others become the details. All faults
// of a configuration or environment form one message instead. The code and message of
// an executed plugin's error object are kept.
func newErrorObject(version, role string, verb roles.Verb, err error) errorObject {
	list := roles.SplitJoined(err)
	o := errorObject{CNIVersion: version, Code: codeOf(list[0])}
	if verb == roles.Status {
		o.Code = statusCode(o.Code, err)
	}
	msg, rest := oneLine(list[0]), list[1:]
	if o.Code == codeConf || o.Code == codeEnv {
		msg, rest = oneLine(err), nil
	}
	var details []string
	var de *DelegateError
	if errors.As(list[0], &de) && de.Msg != "" {
		o.Msg = de.Msg
		details = append(details, msg)
		if de.Details != "" {
			details = append(details, de.Details)
		}
	} else {
		o.Msg = msg
		if role != "" {
			o.Msg = role + ": " + msg
		}
	}
	for _, e := range rest {
		details = append(details, oneLine(e))
	}
	o.Msg = cutAt(o.Msg, maxMsg)
	o.Details = cutAt(strings.Join(details, "\n"), maxDetails)
	return o
}

// Limits of an error object's texts, in bytes. Runtimes log the whole object, and it may
// quote input of any length.
const (
	maxMsg     = 4 << 10
	maxDetails = 16 << 10
)

// cutAt cuts a text after at most most bytes, never within a UTF-8 character, and
// appends "…" if it cut.
func cutAt(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most] + "…"
}

// statusCode returns the code of STATUS for an error: "limited" or "not available" if
// the error only means that ADD would fail now, else code.
func statusCode(code uint, err error) uint {
	var de *DelegateError
	switch {
	case errors.Is(err, roles.ErrLimited):
		return codeLimited
	case errors.Is(err, roles.ErrNotAvailable), errors.Is(err, roles.ErrExhausted):
		return codeNotAvailable
	case code == codeGeneral && !errors.As(err, &de):
		return codeNotAvailable
	}
	return code
}

// codeOf returns the code of the first error of the tree, depth first, that has a
// code, so the code of an outer error precedes that of an error which it wraps. It
// returns codeGeneral if no error has one.
func codeOf(err error) uint {
	table := errorCodes()
	if code, ok := walkCode(table, err); ok {
		return code
	}
	return codeGeneral
}

// ErrorCode returns the code of the error object for err, and the details from the
// error object of an executed plugin, if err has one.
func ErrorCode(err error) (code uint, details string) {
	var de *DelegateError
	if errors.As(err, &de) {
		details = de.Details
	}
	return codeOf(err), details
}

func walkCode(table []codeRow, err error) (uint, bool) {
	if err == nil {
		return 0, false
	}
	if code, ok := ownCode(table, err); ok {
		return code, true
	}
	switch u := err.(type) { //nolint:errorlint // this is the walk itself
	case interface{ Unwrap() error }:
		return walkCode(table, u.Unwrap())
	case interface{ Unwrap() []error }:
		for _, e := range u.Unwrap() {
			if code, ok := walkCode(table, e); ok {
				return code, true
			}
		}
	}
	return 0, false
}

// ownCode returns the code of err itself, not of the errors that it wraps.
func ownCode(table []codeRow, err error) (uint, bool) {
	switch e := err.(type) { //nolint:errorlint // this is the walk itself
	case *DelegateError:
		if e.Code != 0 {
			return e.Code, true
		}
	case *fs.PathError:
		return codeIO, true
	}
	is, hasIs := err.(interface{ Is(error) bool }) //nolint:errorlint // this is the walk itself
	for _, row := range table {
		if err == row.err || (hasIs && is.Is(row.err)) { //nolint:errorlint // this is the walk itself
			return row.code, true
		}
	}
	return 0, false
}

// oneLine returns an error's text with "; " for line breaks.
func oneLine(err error) string {
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}

// isCancelled reports whether the error means that the context was cancelled.
func isCancelled(err error) bool { return errors.Is(err, context.Canceled) }
