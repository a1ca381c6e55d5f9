package command

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// TestRun: which verb is called with what, or what is wrong with its flags.
func TestRun(t *testing.T) {
	var said string
	say := func(c *Call) error {
		path := "nothing"
		if c.Verb != nil {
			path = c.Verb.Path
		}
		said = fmt.Sprintf("%s name=%s loud=%v times=%d %q", path, c.String("name"), c.Bool("loud"), c.Int("times"), c.Args().Slice())
		return nil
	}
	flags := []Flag{&Text{Name: "name", Value: "Eve"}, &Switch{Name: "loud"}, &Number{Name: "times", Value: 2}}
	p := Program{
		Name: "greet", Action: say,
		OnUsageError: func(c *Call, err error) error { return fmt.Errorf("usage of %v: %w", c.Verb != nil, err) },
		Commands: []*Verb{
			{Name: "hello", Flags: flags, Action: say},
			{Name: "good", Action: say, Subcommands: []*Verb{{Name: "bye", Flags: flags, Action: say}}},
			{Name: "fail", Action: func(*Call) error { return errors.New("failed") }},
		},
	}
	SetPaths(p.Commands, "")
	for args, want := range map[string]string{
		"":                       `nothing name= loud=false times=0 []`,
		"huh hello":              `nothing name= loud=false times=0 ["huh" "hello"]`,
		"hello":                  `hello name=Eve loud=false times=2 []`,
		"hello --loud you --me":  `hello name=Eve loud=true times=2 ["you" "--me"]`,
		"hello -name= -- --loud": `hello name= loud=false times=2 ["--loud"]`,
		"hello --times 7 a b":    `hello name=Eve loud=false times=7 ["a" "b"]`,
		"good":                   `good name= loud=false times=0 []`,
		"good day":               `good name= loud=false times=0 ["day"]`,
		"good bye --loud=false":  `good bye name=Eve loud=false times=2 []`,
		"fail":                   `failed`,
		"--version":              `usage of false: flag provided but not defined: -version`,
		"good --loud bye":        `usage of true: flag provided but not defined: -loud`,
		"hello --name":           `usage of true: flag needs an argument: -name`,
		"hello --times many":     `usage of true: invalid value "many" for flag -times: parse error`,
	} {
		said = ""
		if err := p.Run(context.Background(), strings.Fields(args)); err != nil {
			said = err.Error()
		}
		if said != want {
			t.Errorf("%q: %s, want %s", args, said, want)
		}
	}
}
