package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/see/advice"
	"github.com/cnibox/cnibox/roles/see/lint"
)

// errDifferent ends a verb that worked and found a problem. The problem was printed, or is in the
// wrapping error.
var errDifferent = errors.New("differences found")

// errWarnings ends doctor if it found warnings only.
var errWarnings = errors.New("warnings found")

// problem is what a verb found, in words of its own. The exit code is that of errDifferent.
type problem string

func (p problem) Error() string      { return string(p) }
func (problem) Is(target error) bool { return target == errDifferent } //nolint:errorlint // an Is compares as errors.Is does

// jsonFlag is the flag of all verbs for output that programs read.
const jsonFlag = "json"

// failure is an error for programs.
type failure struct {
	Verb     string `json:"verb,omitempty"`
	Error    string `json:"error"`
	Fix      string `json:"fix,omitempty"`
	ExitCode int    `json:"exitCode"`
}

// verbError adds the verb to an error.
type verbError struct {
	verb string
	err  error
}

func (e *verbError) Error() string { return e.verb + ": " + e.err.Error() }
func (e *verbError) Unwrap() error { return e.err }

// beRoot is the advice for missing rights. Other users get it in place of any other.
const beRoot = "run it as root"

// hintOf returns the advice of an error, or "".
func hintOf(err error) string {
	var he *advice.Error
	if errors.As(err, &he) && (os.Geteuid() == 0 || strings.HasPrefix(he.Try, beRoot)) {
		return he.Try
	}
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, netops.ErrPermission) {
		return beRoot
	}
	if he != nil {
		return he.Try
	}
	return ""
}

// named adds the verb to the errors of run.
func named(verb string, run cli.ActionFunc) cli.ActionFunc {
	return func(c *cli.Context) error {
		err := run(c)
		if err == nil {
			return nil
		}
		return &verbError{verb, err}
	}
}

// onNode returns the action of a verb that works on the node. It expects arguments only if the command describes them.
func (p *Process) onNode(run func(*cli.Context, *roles.Host) error) cli.ActionFunc {
	return func(c *cli.Context) error {
		if c.Command.ArgsUsage == "" {
			if err := noArgs(c); err != nil {
				return err
			}
		}
		h, done, err := p.host(c.Context, "")
		if err != nil {
			return err
		}
		defer done()
		return stateHint(run(c, h))
	}
}

// unknownFlag begins the error for a flag that a verb does not have.
const unknownFlag = "unknown flag --"

// flagError wraps the library's error for an invalid flag.
func flagError(cmd *cli.Command, err error) error {
	text := strings.NewReplacer(
		"flag provided but not defined: -", unknownFlag,
		"needs an argument: -", "needs an argument: --",
		" for flag -", " for --",
		" for -", " for --",
	).Replace(err.Error())
	_, given, unknown := strings.Cut(text, unknownFlag)
	if len(given) == 1 {
		text = strings.Replace(text, "--", "-", 1)
	}
	if head, ok := strings.CutSuffix(text, ": parse error"); ok {
		_, name, _ := strings.Cut(head, " for --")
		text = head + ": want " + wanted(cmd, name)
	}
	verb := verbOf(cmd)
	if verb == "" {
		return advice.Usagef("cnibox help", "%s", text)
	}
	hint := "cnibox help " + verb
	if unknown {
		var names []string
		for _, f := range cmd.Flags {
			names = append(names, f.Names()[0])
		}
		if s := lint.Suggest(given, names); s != "" {
			hint = "cnibox " + verb + " --" + s
		}
	}
	return &verbError{verb, advice.Usagef(hint, "%s", text)}
}

// wanted returns what the value of a flag should be.
func wanted(cmd *cli.Command, name string) string {
	for _, f := range cmd.Flags {
		if !slices.Contains(f.Names(), name) {
			continue
		}
		switch f.(type) {
		case *cli.BoolFlag:
			return "true or false"
		case *cli.DurationFlag:
			return "a duration, such as 30s or 5m"
		}
	}
	return "a whole number"
}

// unknownVerb returns an error that suggests a known verb or role.
func (p *Process) unknownVerb(word string, cmds []*cli.Command) error {
	var verbs, names []string
	for _, c := range cmds {
		verbs = append(verbs, c.Names()...)
	}
	for _, e := range p.Table {
		names = append(names, strings.Fields(e.Names)...)
	}
	hint := "cnibox help"
	if s := lint.Suggest(word, verbs); s != "" {
		hint = "cnibox " + s
	} else if s := lint.Suggest(word, names); s != "" {
		hint = "cnibox help " + s
	}
	return advice.Usagef(hint, "%q is not a verb or role", word)
}

// isUnread reports whether the reader of the output closed it, as `| head` does. This is not an
// error. Errors of other connections are different.
func isUnread(err error) bool {
	var conn *net.OpError
	return errors.Is(err, unix.EPIPE) && !errors.As(err, &conn)
}

// report prints an error, as JSON with --json, and returns the exit code.
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
	case errors.Is(err, errWarnings), errors.As(err, new(roles.Warning)):
		code = ExitWarnings
	}
	var ve *verbError
	prefix, inner, verb := appName+": ", err, ""
	if errors.As(err, &ve) {
		prefix, inner, verb = appName+": "+ve.verb+": ", ve.err, ve.verb
	}
	hint := hintOf(err)
	if inner == errDifferent || inner == errWarnings { //nolint:errorlint // bare: everything has been printed
		return code
	}
	if p.wantsJSON() {
		_ = writeJSON(p.Stderr, failure{verb, inner.Error(), hint, code}) // there is no other place to report it
		return code
	}
	for line := range strings.SplitSeq(inner.Error(), "\n") {
		fmt.Fprintln(p.Stderr, prefix+printable(line))
	}
	if hint != "" {
		fmt.Fprintln(p.Stderr, "try: "+hint)
	}
	return code
}

// wantsJSON reports whether --json is among the flags, also if they could not be parsed.
func (p *Process) wantsJSON() bool {
	for _, arg := range p.Args {
		if arg == "--" {
			return false
		}
		if arg == "--"+jsonFlag {
			return true
		}
	}
	return false
}
