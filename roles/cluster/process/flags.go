package process

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/roles"
)

// Help is the output of -help, as an error that is flag.ErrHelp.
type Help string

func (h Help) Error() string { return string(h) }

// Is reports whether err is flag.ErrHelp.
func (Help) Is(err error) bool { return err == flag.ErrHelp } //nolint:errorlint // an Is compares as errors.Is does

// NewFlags returns a set for the flags of a daemon.
func NewFlags(name string) *flag.FlagSet {
	f := flag.NewFlagSet(name, flag.ContinueOnError)
	f.SetOutput(io.Discard)
	return f
}

// Parse parses the arguments of a daemon. For -help, and for -version if version is not empty, the error is a Help.
// faults has an error if an argument is not a flag.
func Parse(f *flag.FlagSet, summary, version string, args []string) (faults []error, err error) {
	showVersion := false
	if version != "" {
		f.BoolVar(&showVersion, "version", false, "print the version")
	}
	err = f.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return nil, Help("cnibox " + f.Name() + " [FLAG…]: " + summary + "\n\nflags:" + Usage(f))
	case err != nil:
		return nil, roles.Usagef("%w: 'cnibox %s -help' lists the flags", err, f.Name())
	case showVersion:
		return nil, Help(version)
	case f.NArg() > 0:
		faults = append(faults, fmt.Errorf("%q is not a flag", f.Arg(0)))
	}
	return faults, nil
}

// Usage returns a line for each flag, with its default.
func Usage(f *flag.FlagSet) string {
	var out strings.Builder
	f.VisitAll(func(one *flag.Flag) {
		value, text := flag.UnquoteUsage(one)
		if value != "" {
			value = " " + strings.ToUpper(value)
		}
		fmt.Fprintf(&out, "\n  -%s%s: %s", one.Name, value, text)
		if one.DefValue != "" && one.DefValue != "false" {
			fmt.Fprintf(&out, " (%s)", one.DefValue)
		}
	})
	return out.String()
}

// VerbFlags returns flags as those of a command of the command line, except some. The help of a number says what 0 means.
func VerbFlags(f *flag.FlagSet, except ...string) (all []roles.Flag) {
	f.VisitAll(func(one *flag.Flag) {
		value, text := flag.UnquoteUsage(one)
		verb := roles.Flag{Name: one.Name, Help: text, Switch: value == ""}
		if !verb.Switch && one.DefValue != "0" {
			verb.Default = one.DefValue
		}
		if !slices.Contains(except, one.Name) {
			all = append(all, verb)
		}
	})
	return all
}

// CheckPaths returns an error for each flag, by name, that is neither empty nor an absolute path.
func CheckPaths(flags map[string]string) (errs []error) {
	for name, path := range flags {
		if path != "" && !filepath.IsAbs(path) {
			errs = append(errs, fmt.Errorf("%s: %q is not an absolute path", name, path))
		}
	}
	return errs
}

// SplitList returns the parts of a comma-separated list.
func SplitList(v string) (all []string) {
	for one := range strings.SplitSeq(v, ",") {
		if one = strings.TrimSpace(one); one != "" {
			all = append(all, one)
		}
	}
	return all
}
