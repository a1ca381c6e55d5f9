package process

import (
	"errors"
	"flag"
	"testing"
)

// TestUsage: the usage lists flags with their arguments and defaults.
func TestUsage(t *testing.T) {
	f := flag.NewFlagSet("x", flag.ContinueOnError)
	f.String("at", "/run/x", "`path` to listen on")
	f.Bool("loud", false, "say more")
	if got, want := Usage(f), "\n  -at PATH: path to listen on (/run/x)\n  -loud: say more"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if !errors.Is(Help("x"), flag.ErrHelp) {
		t.Error("help is not flag.ErrHelp")
	}
}
