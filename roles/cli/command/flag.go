package command

import (
	"flag"
	"strconv"
)

// Flag is a flag of a verb.
type Flag interface {
	// Describe tells all that a help says: the name, what it is for, its default,
	// empty if it has none, and whether a value follows.
	Describe() (name, usage, value string, takesValue bool)
	define(*flag.FlagSet)
}

// Text is a flag with a text.
type Text struct{ Name, Value, Usage string }

// Switch is a flag that is on or off.
type Switch struct{ Name, Usage string }

// Number is a flag with a number.
type Number struct {
	Name  string
	Value int
	Usage string
}

// Describe implements Flag.
func (f *Text) Describe() (name, usage, value string, takesValue bool) {
	return f.Name, f.Usage, f.Value, true
}

// Describe implements Flag.
func (f *Switch) Describe() (name, usage, value string, takesValue bool) {
	return f.Name, f.Usage, "", false
}

// Describe implements Flag.
func (f *Number) Describe() (name, usage, value string, takesValue bool) {
	return f.Name, f.Usage, strconv.Itoa(f.Value), true
}

func (f *Text) define(s *flag.FlagSet)   { s.String(f.Name, f.Value, f.Usage) }
func (f *Switch) define(s *flag.FlagSet) { s.Bool(f.Name, false, f.Usage) }
func (f *Number) define(s *flag.FlagSet) { s.Int(f.Name, f.Value, f.Usage) }
