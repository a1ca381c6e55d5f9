// Package page replaces the generated blocks of pages of the documentation.
package page

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// errNoBlock means that a page does not contain the two markers once each, in this order.
var errNoBlock = errors.New("the block is missing or incomplete")

// Block returns content between the markers of a block.
func Block(name, content string) string {
	return start(name) + "\n" + strings.TrimRight(content, "\n") + "\n" + end(name)
}

// Replace replaces the content of a block of a file.
func Replace(path, name, content string) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read page: %w", err)
	}
	updated, err := replace(string(old), name, content)
	if err != nil {
		return fmt.Errorf("update %q: %w", path, err)
	}
	if err := os.WriteFile(path, []byte(updated), 0o644); err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	return nil
}

// Content returns the content of a block of a file.
func Content(path, name string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read page: %w", err)
	}
	_, rest, found := strings.Cut(string(text), start(name))
	content, _, closed := strings.Cut(rest, end(name))
	if !found || !closed {
		return "", fmt.Errorf("read %q: %w: %s … %s", path, errNoBlock, start(name), end(name))
	}
	return strings.TrimPrefix(content, "\n"), nil
}

// replace keeps the markers, so that it can be repeated.
func replace(text, name, content string) (string, error) {
	before, rest, found := strings.Cut(text, start(name))
	_, after, closed := strings.Cut(rest, end(name))
	if !found || !closed || strings.Count(text, start(name)) != 1 || strings.Count(text, end(name)) != 1 {
		return "", fmt.Errorf("%w: %s … %s", errNoBlock, start(name), end(name))
	}
	return before + Block(name, content) + after, nil
}

func start(name string) string { return "<!-- " + name + ":start -->" }
func end(name string) string   { return "<!-- " + name + ":end -->" }
