// Package command reads a command line: verbs, verbs below these, and their
// flags. It renders nothing.
//
// It takes the place of urfave/cli, whose help is written by text/template: who
// calls methods by names keeps the linker from leaving any exported method out,
// which made the binary two megabytes larger.
package command

import (
	"context"
	"flag"
	"io"
	"strconv"
)

// Program is a whole command line.
type Program struct {
	Name, Usage string
	Commands    []*Verb
	// Action runs where no verb is given, or one that there is not.
	Action Action
	// OnUsageError makes an error of one that is about flags, as package flag
	// words it.
	OnUsageError func(*Call, error) error
}

// Verb is a word that a person types, with what may follow it.
type Verb struct {
	Name, Usage string
	// ArgsUsage names the arguments: "FILE [NETNS]".
	ArgsUsage   string
	Description string
	Flags       []Flag
	// Action runs the verb. One that has none needs a verb below it.
	Action      Action
	Subcommands []*Verb
	// Path is the verb with those above it: "state export". Run sets it.
	Path string
}

// Action is what a verb does.
type Action func(*Call) error

// Call is one call of a verb.
type Call struct {
	context.Context
	Program *Program
	// Verb is nil for the program's own action.
	Verb *Verb
	args Args
	set  *flag.FlagSet
}

// Run finds the verb that args begin with, reads the flags right behind it and
// calls its action with the other arguments.
func (p *Program) Run(ctx context.Context, args []string) error {
	c := &Call{Context: ctx, Program: p}
	verbs, action := p.Commands, p.Action
	for {
		c.set = c.flags()
		if err := c.set.Parse(args); err != nil {
			return p.OnUsageError(c, err)
		}
		c.args = c.set.Args()
		next := Find(verbs, c.args.First())
		if next == nil {
			return action(c)
		}
		c.Verb, verbs, action, args = next, next.Subcommands, next.Action, c.args[1:]
	}
}

// flags are those that may stand here.
func (c *Call) flags() *flag.FlagSet {
	set := flag.NewFlagSet("", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	if c.Verb != nil {
		for _, f := range c.Verb.Flags {
			f.define(set)
		}
	}
	return set
}

// Find is the verb of a name, or nil.
func Find(verbs []*Verb, name string) *Verb {
	for _, v := range verbs {
		if v.Name == name {
			return v
		}
	}
	return nil
}

// SetPaths gives the verbs and those below them their paths.
func SetPaths(verbs []*Verb, above string) {
	for _, v := range verbs {
		v.Path = above + v.Name
		SetPaths(v.Subcommands, v.Path+" ")
	}
}

// Args are a verb's arguments behind its flags.
type Args []string

// Get is the n-th one, counted from 0, or empty.
func (a Args) Get(n int) string {
	if n >= len(a) {
		return ""
	}
	return a[n]
}

// First is the first one, or empty.
func (a Args) First() string { return a.Get(0) }

// Present tells whether there are any.
func (a Args) Present() bool { return len(a) > 0 }

// Len is how many there are.
func (a Args) Len() int { return len(a) }

// Slice is all of them.
func (a Args) Slice() []string { return a }

// Args are the arguments behind the flags.
func (c *Call) Args() Args { return c.args }

// String is a flag's value; empty where the verb has none of that name.
func (c *Call) String(name string) string {
	if f := c.set.Lookup(name); f != nil {
		return f.Value.String()
	}
	return ""
}

// Bool tells whether a switch is on.
func (c *Call) Bool(name string) bool { return c.String(name) == "true" }

// Int is a number's value.
func (c *Call) Int(name string) int {
	n, _ := strconv.Atoi(c.String(name)) // it was parsed already
	return n
}
