package cli

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/cli/lint"
)

// errDifferent ends a verb that worked and found what should not be; what it
// found has been printed, or is in the error that wraps it.
var errDifferent = errors.New("differences found")

// verbError tells which verb failed.
type verbError struct {
	verb string
	err  error
}

func (e *verbError) Error() string { return e.verb + ": " + e.err.Error() }
func (e *verbError) Unwrap() error { return e.err }

// hintError is an error with advice on what to do next.
type hintError struct {
	err  error
	hint string
}

func (e *hintError) Error() string { return e.err.Error() }
func (e *hintError) Unwrap() error { return e.err }

// withHint adds what to do next to an error.
func withHint(err error, hint string) error {
	if err == nil || hint == "" {
		return err
	}
	return &hintError{err, hint}
}

// usagef is an error of the caller's, with what to try.
func usagef(hint, format string, a ...any) error {
	return withHint(roles.Usagef(format, a...), hint)
}

// named puts the verb's name on its errors.
func named(verb string, run cli.ActionFunc) cli.ActionFunc {
	return func(c *cli.Context) error {
		err := run(c)
		if err == nil {
			return nil
		}
		return &verbError{verb, err}
	}
}

// flagError is called by the library for flags that it cannot parse.
func flagError(c *cli.Context, err error, _ bool) error {
	text := strings.NewReplacer(
		"flag provided but not defined: -", "unknown flag --",
		"needs an argument: -", "needs an argument: --",
		" for -", " for --",
	).Replace(err.Error())
	verb := ""
	if c.Command != nil {
		verb = verbOf(c.Command)
	}
	if verb == "" || verb == appName {
		if strings.HasSuffix(text, " --version") || strings.HasSuffix(text, " --v") {
			return usagef("cnibox version", "%s", text)
		}
		return usagef("cnibox help", "%s", text)
	}
	return &verbError{verb, usagef("cnibox help "+verb, "%s", text)}
}

// unknownVerb suggests what was meant.
func unknownVerb(word string, cmds []*cli.Command) error {
	var names []string
	for _, c := range cmds {
		names = append(names, c.Names()...)
	}
	hint := "cnibox help"
	if s := lint.Suggest(word, names); s != "" {
		hint = "cnibox " + s
	}
	return usagef(hint, "%q is no verb and no role", word)
}

// isUnread tells whether output was not written because nobody reads on: of `| head`
// that is no fault. Connections have errors of their own.
func isUnread(err error) bool {
	var conn *net.OpError
	return errors.Is(err, unix.EPIPE) && !errors.As(err, &conn)
}

// report prints an error and says what to exit with.
func (p *Process) report(err error) int {
	if err == nil || isUnread(err) {
		return ExitOK
	}
	code := ExitFailed
	switch {
	case errors.Is(err, roles.ErrUsage):
		code = ExitUsage
	case errors.Is(err, errDifferent):
		code = ExitDifferent
	}
	var ve *verbError
	prefix, inner := appName+": ", err
	if errors.As(err, &ve) {
		prefix, inner = appName+": "+ve.verb+": ", ve.err
	}
	if inner != errDifferent { //nolint:errorlint // bare: everything has been printed
		for line := range strings.SplitSeq(inner.Error(), "\n") {
			fmt.Fprintln(p.Stderr, prefix+printable(line))
		}
	}
	var he *hintError
	if errors.As(err, &he) {
		fmt.Fprintln(p.Stderr, "try: "+he.hint)
	}
	return code
}
