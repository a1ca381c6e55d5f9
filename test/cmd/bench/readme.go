package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// The markers of the block of a README that this program writes.
const (
	blockStart = "<!-- bench:start -->"
	blockEnd   = "<!-- bench:end -->"
)

// errNoBlock means that a file does not contain the two markers once each, in this order.
var errNoBlock = errors.New("no block " + blockStart + " … " + blockEnd)

// updateReadme replaces the text between the markers of a file.
func updateReadme(path, content string) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read README: %w", err)
	}
	updated, err := replaceBlock(string(old), content)
	if err != nil {
		return fmt.Errorf("update %q: %w", path, err)
	}
	if err := os.WriteFile(path, []byte(updated), 0o644); err != nil {
		return fmt.Errorf("write README: %w", err)
	}
	return nil
}

// replaceBlock replaces the text between the markers. The markers stay, so that it can be repeated.
func replaceBlock(text, content string) (string, error) {
	before, rest, found := strings.Cut(text, blockStart)
	_, after, closed := strings.Cut(rest, blockEnd)
	if !found || !closed || strings.Count(text, blockStart) != 1 || strings.Count(text, blockEnd) != 1 {
		return "", errNoBlock
	}
	return before + blockStart + "\n" + strings.TrimRight(content, "\n") + "\n" + blockEnd + after, nil
}
