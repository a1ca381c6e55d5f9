package cli

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/cli/lint"
)

// verbPages has a page for each verb. Its help, flags and completion are made from it:
//
//	== VERB [VERB]: ARGUMENTS
//	what it does, in one line
//
//	text
//
//	flags:
//	  -s --switch     what it is for
//	  --name=DEFAULT  what it is for
//
//go:embed verbs.txt
var verbPages string

// verb is a command of the command line.
type verb struct {
	// name includes the names of its parents: "state export". It is empty for the program itself.
	name string
	// usage is one line, text is the rest of the help, and args describes the arguments.
	usage, args, text string
	flags             []option
	// verbs are its own verbs.
	verbs []*verb
	// run is nil if one of its verbs has to be given.
	run func(*invocation) error
}

// option is a flag of a verb.
type option struct {
	// short is a second name, or empty.
	name, short, usage string
	// value is the default. It decides whether a given value has to be a number, a duration or any text.
	value    string
	isSwitch bool
}

// parseVerbs returns the verbs of pages, in their order.
func parseVerbs(pages string) *verb {
	root := &verb{}
	for page := range strings.SplitSeq("\n"+pages, "\n== ") {
		head, rest, isPage := strings.Cut(page, "\n")
		if !isPage {
			continue
		}
		v := new(verb)
		v.name, v.args, _ = strings.Cut(head, ": ")
		v.usage, rest, _ = strings.Cut(rest, "\n")
		text, flags, _ := strings.Cut(rest, "\nflags:\n")
		v.text = strings.TrimSpace(text)
		for line := range strings.Lines(flags) {
			if names, usage, isFlag := strings.Cut(strings.TrimSpace(line), "  "); isFlag {
				v.flags = append(v.flags, parseOption(names, strings.TrimSpace(usage)))
			}
		}
		root.add(v)
	}
	return root
}

// parseOption parses a flag of a page: "-s --name=DEFAULT".
func parseOption(names, usage string) option {
	o := option{usage: usage}
	short, long, isTwo := strings.Cut(names, " ")
	if isTwo {
		o.short = strings.TrimPrefix(short, "-")
	} else {
		long = short
	}
	var takesValue bool
	o.name, o.value, takesValue = strings.Cut(strings.TrimPrefix(long, "--"), "=")
	o.isSwitch = !takesValue
	return o
}

// add adds a verb below the verb that its name begins with.
func (v *verb) add(other *verb) {
	parent := v
	for {
		next := parent.find(strings.Fields(strings.TrimPrefix(other.name, parent.name))[0])
		if next == nil {
			parent.verbs = append(parent.verbs, other)
			return
		}
		parent = next
	}
}

// each calls do for all verbs below this one.
func (v *verb) each(do func(*verb)) {
	for _, one := range v.verbs {
		do(one)
		one.each(do)
	}
}

// word is the last word of the name.
func (v *verb) word() string { return v.name[strings.LastIndexByte(v.name, ' ')+1:] }

// find returns the verb with a name among its verbs, or nil.
func (v *verb) find(word string) *verb {
	if i := slices.IndexFunc(v.verbs, func(one *verb) bool { return one.word() == word }); i >= 0 {
		return v.verbs[i]
	}
	return nil
}

// descend returns the verb that the first arguments name, and the other arguments.
func (v *verb) descend(args []string) (*verb, []string) {
	for len(args) > 0 {
		next := v.find(args[0])
		if next == nil {
			break
		}
		v, args = next, args[1:]
	}
	return v, args
}

// option returns the flag with a name, or nil.
func (v *verb) option(name string) *option {
	if i := slices.IndexFunc(v.flags, func(o option) bool { return o.name == name || o.short == name && name != "" }); i >= 0 {
		return &v.flags[i]
	}
	return nil
}

// check returns an error for a value that is not of the type of the default.
func (o *option) check(value string) error {
	var err error
	kind := "value"
	if _, isDuration := time.ParseDuration(o.value); o.isSwitch {
		kind = "boolean value"
		_, err = strconv.ParseBool(value)
	} else if _, notNumber := strconv.Atoi(o.value); notNumber == nil {
		_, err = strconv.ParseInt(value, 0, 0)
	} else if isDuration == nil {
		_, err = time.ParseDuration(value)
	}
	switch {
	case errors.Is(err, strconv.ErrRange):
		return fmt.Errorf("invalid %s %q for --%s: value out of range", kind, value, o.name)
	case err != nil:
		return fmt.Errorf("invalid %s %q for --%s: parse error", kind, value, o.name)
	}
	return nil
}

// invocation is one call of a verb.
type invocation struct {
	Context context.Context //nolint:containedctx // it ends with the call
	verb    *verb
	args    []string
	// given has the values of the flags that were given, each with the name by which it was.
	given map[string]given
}

type given struct{ name, value string }

// invocation separates flags from arguments. Flags may follow arguments. After "--" all are arguments.
func (v *verb) invocation(ctx context.Context, words []string) (*invocation, error) {
	if len(v.verbs) > 0 && v.args == "" && len(words) > 0 && !strings.HasPrefix(words[0], "-") && v.find(words[0]) == nil {
		return nil, unknownSub(v, words[0])
	}
	c := &invocation{Context: ctx, verb: v, given: map[string]given{}}
	for i := 0; i < len(words); i++ {
		word := words[i]
		if word == "--" {
			c.args = append(c.args, words[i+1:]...)
			break
		}
		if len(word) < 2 || word[0] != '-' {
			c.args = append(c.args, word)
			continue
		}
		name, value, hasValue := strings.Cut(strings.TrimPrefix(word[1:], "-"), "=")
		o := v.option(name)
		switch {
		case o == nil:
			return nil, v.unknownFlag(name)
		case hasValue:
		case o.isSwitch:
			value = "true"
		case i+1 == len(words):
			return nil, usagef("cnibox help "+v.name, "flag needs an argument: --%s", name)
		default:
			i++
			value = words[i]
		}
		err := o.check(value)
		if before, twice := c.given[o.name]; twice && before.name != name && err == nil {
			err = fmt.Errorf("--%s and -%s are the same flag: give one of them", o.name, o.short)
		}
		if err != nil {
			return nil, usagef("cnibox help "+v.name, "%w", err)
		}
		c.given[o.name] = given{name, value}
	}
	return c, nil
}

// countingVerbs are the verbs that check the number of their arguments themselves.
func countingVerbs() []string {
	return []string{"lint", "check", "state import", "path", "capture", "bench", "completion", "help"}
}

// call runs the verb.
func (v *verb) call(c *invocation) error {
	if v.run == nil {
		return usagef("cnibox help "+v.name, "no verb given")
	}
	if err := countArgs(v.args, c.args); err != nil && !slices.Contains(countingVerbs(), v.name) {
		return withHint(err, "cnibox help "+v.name)
	}
	return v.run(c)
}

// unknownFlag returns an error that suggests a flag of the verb.
func (v *verb) unknownFlag(name string) error {
	hint := strings.TrimSpace("cnibox help " + v.name)
	var names []string
	for _, o := range v.flags {
		names = append(names, o.name)
	}
	if s := lint.Suggest(name, names); s != "" {
		hint = "cnibox " + v.name + " --" + s
	}
	return usagef(hint, "unknown flag --%s", name)
}

// String returns the value of a flag. A flag that the verb does not have has no value.
func (c *invocation) String(name string) string {
	if g, ok := c.given[name]; ok {
		return g.value
	}
	if o := c.verb.option(name); o != nil {
		return o.value
	}
	return ""
}

// Bool returns the value of a switch.
func (c *invocation) Bool(name string) bool {
	is, err := strconv.ParseBool(c.String(name))
	return err == nil && is
}

// Int returns the value of a flag with a number, which was checked.
func (c *invocation) Int(name string) int {
	n, err := strconv.ParseInt(c.String(name), 0, 0)
	if err != nil {
		return 0
	}
	return int(n)
}

// Duration returns the value of a flag with a duration, which was checked.
func (c *invocation) Duration(name string) time.Duration {
	d, err := time.ParseDuration(c.String(name))
	if err != nil {
		return 0
	}
	return d
}

// IsSet reports whether a flag was given.
func (c *invocation) IsSet(name string) bool {
	_, is := c.given[name]
	return is
}

// arg returns an argument, or "".
func (c *invocation) arg(i int) string {
	if i >= len(c.args) {
		return ""
	}
	return c.args[i]
}

// countArgs returns an error for a wrong number of arguments. takes has the form of
// [roles.CommandVerb.Args]; "[A | B]" is one argument.
func countArgs(takes string, args []string) error {
	least, most := 0, 0
	for word := range strings.FieldsSeq(strings.ReplaceAll(takes, " | ", "|")) {
		name := word
		if isOptional(word) {
			name = word[1 : len(word)-1]
		} else {
			least++
		}
		most++
		if strings.HasSuffix(name, "…") {
			most = math.MaxInt
		}
	}
	switch {
	case takes == "" && len(args) > 0:
		return roles.Usagef("%q: no argument is expected", args[0])
	case len(args) < least:
		return roles.Usagef("want %s", takes)
	case len(args) > most:
		return roles.Usagef("unexpected argument %q: want %s", args[most], takes)
	}
	return nil
}

// isOptional reports whether brackets enclose a whole word.
func isOptional(word string) bool {
	depth := 0
	for i, r := range word {
		switch r {
		case '[':
			depth++
		case ']':
			depth--
		}
		if depth == 0 {
			return r == ']' && i == len(word)-1
		}
	}
	return false
}
