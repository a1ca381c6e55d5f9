package cli

import (
	"strings"

	"github.com/cnibox/cnibox/roles/cli/command"
)

// arrange moves flags before the other arguments of a verb, since package
// command stops at the first argument that is no flag, and turns -h and --help
// anywhere into the verb "help".
func arrange(cmds []*command.Verb, args []string) ([]string, error) {
	var path []string
	var cmd *command.Verb
	for len(args) > 0 {
		next := command.Find(cmds, args[0])
		if next == nil {
			break
		}
		cmd, cmds = next, next.Subcommands
		path, args = append(path, args[0]), args[1:]
	}
	if wantsHelp(args) {
		return append([]string{"help"}, path...), nil
	}
	if cmd == nil {
		return append(path, args...), nil
	}
	if len(cmd.Subcommands) > 0 && len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		return nil, &verbError{cmd.Path, unknownSub(cmd, args[0])}
	}
	var flags, words []string
	for i := 0; i < len(args); i++ {
		a := args[i]
		if a == "--" {
			words = append(words, args[i+1:]...)
			break
		}
		if len(a) < 2 || a[0] != '-' {
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

func unknownSub(cmd *command.Verb, word string) error {
	var names []string
	for _, s := range cmd.Subcommands {
		names = append(names, s.Name)
	}
	return usagef("cnibox help "+cmd.Path, "%q is none of its verbs: %s", word, strings.Join(names, ", "))
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

// takesValue tells whether the flag's value is the next argument.
func takesValue(cmd *command.Verb, arg string) bool {
	name := strings.TrimLeft(arg, "-")
	if strings.Contains(name, "=") {
		return false
	}
	for _, f := range cmd.Flags {
		if flag, _, _, takes := f.Describe(); flag == name {
			return takes
		}
	}
	return false
}
