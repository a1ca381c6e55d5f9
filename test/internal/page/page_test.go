package page

import (
	"errors"
	"testing"
)

func TestReplace(t *testing.T) {
	blockStart, blockEnd := start("part"), end("part")
	const content = "| a |\n"
	want := "top\n" + blockStart + "\n| a |\n" + blockEnd + "\nbottom\n"
	for name, text := range map[string]string{
		"empty block": "top\n" + blockStart + blockEnd + "\nbottom\n",
		"old block":   "top\n" + blockStart + "\nold\nolder\n" + blockEnd + "\nbottom\n",
		"same block":  want,
	} {
		t.Run(name, func(t *testing.T) {
			got, err := replace(text, "part", content)
			if err != nil || got != want {
				t.Errorf("replace = %q, %v; want %q", got, err, want)
			}
		})
	}
	for name, text := range map[string]string{
		"no markers": "top\n",
		"no end":     blockStart + "\n",
		"no start":   blockEnd + "\n",
		"reversed":   blockEnd + blockStart,
		"end before": blockEnd + blockStart + blockEnd,
		"two starts": blockStart + blockEnd + blockStart,
		"two ends":   blockStart + blockEnd + blockEnd,
		"twice":      blockStart + blockEnd + blockStart + blockEnd,
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := replace(text, "part", content); !errors.Is(err, errNoBlock) {
				t.Errorf("replace = %q, %v; want errNoBlock", got, err)
			}
		})
	}
}
