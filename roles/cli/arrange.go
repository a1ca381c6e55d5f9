package cli

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/roles/see/advice"
	"github.com/cnibox/cnibox/roles/see/lint"
)

// arrange moves flags before the other arguments of a verb, because the library stops at the first
// argument that is not a flag. It turns -h and --help at any position into the verb "help".
func arrange(cmds []*cli.Command, args []string) ([]string, error) {
	var path []string
	var cmd *cli.Command
	for len(args) > 0 {
		next := find(cmds, args[0])
		if next == nil {
			break
		}
		cmd, cmds = next, next.Subcommands
		path, args = append(path, args[0]), args[1:]
	}
	if wantsHelp(args) && (cmd == nil || !cmd.SkipFlagParsing || strings.HasPrefix(args[0], "-")) {
		if cmd == nil {
			words := slices.DeleteFunc(slices.Clone(args), func(a string) bool { return strings.HasPrefix(a, "-") })
			path = words[:min(1, len(words))] // a verb after --help, a role, or an unknown word
		}
		return append([]string{"help"}, path...), nil
	}
	if cmd == nil && len(args) == 1 && slices.Contains([]string{"-v", "-version", "--version"}, args[0]) {
		return []string{"version"}, nil
	}
	if cmd == nil {
		return append(path, args...), nil
	}
	if len(cmd.Subcommands) > 0 && cmd.ArgsUsage == "" && len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		return nil, &verbError{verbOf(cmd), unknownSub(cmd, args[0])}
	}
	var flags, words []string
	for i := 0; i < len(args); i++ {
		a := args[i]
		if a == "--" {
			words = append(words, args[i+1:]...)
			break
		}
		if len(a) < 2 || a[0] != '-' {
			if cmd.SkipFlagParsing { // what follows is a command line of its own
				words = args[i:]
				break
			}
			words = append(words, a)
			continue
		}
		flags = append(flags, a)
		if takesValue(cmd, a) && i+1 < len(args) {
			i++
			flags = append(flags, args[i])
		}
	}
	out := append(path, flags...)
	if len(words) > 0 {
		out = append(append(out, "--"), words...)
	}
	return out, nil
}

func unknownSub(cmd *cli.Command, word string) error {
	if len(cmd.Subcommands) == 0 {
		return advice.Usagef("cnibox help "+verbOf(cmd), "%s has no verbs, so %q means nothing", verbOf(cmd), word)
	}
	var names []string
	for _, s := range cmd.Subcommands {
		names = append(names, s.Name)
	}
	hint := "cnibox help " + verbOf(cmd)
	if s := lint.Suggest(word, names); s != "" {
		hint = "cnibox " + verbOf(cmd) + " " + s
	}
	return advice.Usagef(hint, "%q is not one of its verbs: %s", word, strings.Join(names, ", "))
}

func wantsHelp(args []string) bool {
	for _, a := range args {
		switch a {
		case "--":
			return false
		case "-h", "-help", "--help":
			return true
		}
	}
	return false
}

func find(cmds []*cli.Command, name string) *cli.Command {
	for _, c := range cmds {
		if c.HasName(name) {
			return c
		}
	}
	return nil
}

// takesValue reports whether the flag's value is the next argument.
func takesValue(cmd *cli.Command, arg string) bool {
	name := strings.TrimLeft(arg, "-")
	if strings.Contains(name, "=") {
		return false
	}
	for _, f := range cmd.Flags {
		if slices.Contains(f.Names(), name) {
			_, isBool := f.(*cli.BoolFlag)
			return !isBool
		}
	}
	return false
}
