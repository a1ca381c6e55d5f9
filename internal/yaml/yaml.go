// Package yaml converts one YAML document to JSON. It is for files that people write in YAML:
// kubeconfigs, kubelet's configuration, NetworkAttachmentDefinitions and the metadata of Hetzner
// Cloud.
//
// The library go.yaml.in/yaml/v3 parses the document into a tree of nodes. This package walks the tree.
// It refuses values that YAML 1.1 and 1.2 define differently, and features that such files do not need:
// yes/no/on/off, numbers that are not JSON numbers, keys that are not text, duplicate keys, anchors,
// aliases, merge keys, tags, directives and further documents. The library's own decoder accepts these,
// and takes quadratic time to find duplicate keys.
package yaml

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

const (
	// maxSize bounds a document in bytes. No caller reads larger files.
	maxSize = 2 << 20
	// maxDepth bounds nesting.
	maxDepth = 64
)

// ErrSyntax is wrapped by each error of ToJSON. The text has the line and the fix.
var ErrSyntax = errors.New("YAML")

// ToJSON returns the document as JSON and keeps the order of its keys. A document that is valid JSON is
// returned unchanged. An empty document is null.
func ToJSON(doc []byte) ([]byte, error) {
	if json.Valid(doc) {
		return doc, nil
	}
	root, err := parse(doc)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSyntax, err)
	}
	w := walker{}
	if err := w.value(root, 0); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSyntax, err)
	}
	return w.out, nil
}

// parse returns the root node of the only document.
func parse(doc []byte) (*yaml.Node, error) {
	switch {
	case len(doc) > maxSize:
		return nil, fmt.Errorf("larger than %d bytes", maxSize)
	case !utf8.Valid(doc):
		return nil, errors.New("not UTF-8")
	}
	if i := bytes.IndexAny(doc, "\u0085\u2028\u2029"); i >= 0 {
		// YAML 1.1 ends a line here, YAML 1.2 does not.
		return nil, errorAt(1+bytes.Count(doc[:i], []byte("\n")), "a Unicode line break: use a newline, or write it as an escape in double quotes")
	}
	if line := directive(doc); line > 0 {
		return nil, errorAt(line, "directives (%%) are not supported")
	}
	dec := yaml.NewDecoder(bytes.NewReader(doc))
	var first, second yaml.Node
	switch err := dec.Decode(&first); {
	case errors.Is(err, io.EOF):
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null"}, nil
	case err != nil:
		return nil, libraryError(err)
	}
	switch err := dec.Decode(&second); {
	case err == nil:
		return nil, errorAt(second.Line, "one document is expected, and another begins here")
	case !errors.Is(err, io.EOF):
		return nil, libraryError(err)
	}
	return first.Content[0], nil
}

// directive returns the line of a directive at the start of the document, or 0.
func directive(doc []byte) int {
	for i, line := range bytes.Split(doc, []byte("\n")) {
		line = bytes.TrimSpace(bytes.TrimPrefix(line, []byte("\ufeff")))
		switch {
		case bytes.HasPrefix(line, []byte("%")):
			return i + 1
		case len(line) > 0 && line[0] != '#':
			return 0
		}
	}
	return 0
}

// libraryError replaces the library's prefix. The library reports the line where the enclosing
// collection begins, or the line before that. It omits line 1.
func libraryError(err error) error {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	if !strings.HasPrefix(text, "line ") {
		text = "line 1: " + text
	}
	return errors.New("near " + text)
}

func errorAt(line int, format string, args ...any) error {
	return fmt.Errorf("line %d: %w", line, fmt.Errorf(format, args...))
}

// walker appends nodes to out as JSON.
type walker struct{ out []byte }

func (w *walker) value(n *yaml.Node, depth int) error {
	switch {
	case depth > maxDepth:
		return errorAt(n.Line, "nested more than %d deep", maxDepth)
	case n.Anchor != "" || n.Kind == yaml.AliasNode:
		return errorAt(n.Line, "anchors and aliases (& and *) are not supported: write the value out, or quote it")
	case n.Style&yaml.TaggedStyle != 0:
		return errorAt(n.Line, "tags (!) are not supported: quote the value if it begins so")
	}
	switch n.Kind {
	case yaml.MappingNode:
		return w.mapping(n, depth)
	case yaml.SequenceNode:
		return w.sequence(n, depth)
	}
	return w.scalar(n)
}

func (w *walker) sequence(n *yaml.Node, depth int) error {
	w.out = append(w.out, '[')
	for i, item := range n.Content {
		if i > 0 {
			w.out = append(w.out, ',')
		}
		if err := w.value(item, depth+1); err != nil {
			return err
		}
	}
	w.out = append(w.out, ']')
	return nil
}

func (w *walker) mapping(n *yaml.Node, depth int) error {
	w.out = append(w.out, '{')
	seen := make(map[string]bool, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if i > 0 {
			w.out = append(w.out, ',')
		}
		if err := w.key(key); err != nil {
			return err
		}
		if seen[key.Value] {
			return errorAt(key.Line, "key %q is given twice", key.Value)
		}
		seen[key.Value] = true
		if n.Style&yaml.FlowStyle != 0 && value.Kind == yaml.ScalarNode && value.Style == 0 && value.Value == "" {
			return errorAt(key.Line, "want a colon and a value after key %q", key.Value)
		}
		w.out = append(w.out, ':')
		if err := w.value(value, depth+1); err != nil {
			return err
		}
	}
	w.out = append(w.out, '}')
	return nil
}

// key appends a key, which must be text in every YAML version.
func (w *walker) key(n *yaml.Node) error {
	switch {
	case n.Kind == yaml.MappingNode || n.Kind == yaml.SequenceNode:
		return errorAt(n.Line, "a key cannot be a mapping or a sequence")
	case n.Kind == yaml.ScalarNode && n.Tag == "!!merge":
		return errorAt(n.Line, "merge keys (<<) are not supported")
	}
	begin := len(w.out)
	if err := w.value(n, 0); err != nil {
		return err
	}
	if w.out[begin] != '"' {
		return errorAt(n.Line, "key %.40q is not text: quote it", n.Value)
	}
	return nil
}

func (w *walker) scalar(n *yaml.Node) error {
	switch {
	case n.Style != 0: // quoted or a block
		w.text(n.Value)
	case n.Tag == "!!null":
		w.out = append(w.out, "null"...)
	case n.Tag == "!!bool":
		w.out = append(w.out, strings.ToLower(n.Value)...)
	case n.Tag == "!!int" || n.Tag == "!!float":
		if !json.Valid([]byte(n.Value)) {
			return errorAt(n.Line, "%.40s is not a JSON number: quote it if it is text", n.Value)
		}
		w.out = append(w.out, n.Value...)
	case isTooLarge(n.Value):
		return errorAt(n.Line, "%.40s is too large for a number: quote it if it is text", n.Value)
	case isYAML11Bool(n.Value):
		return errorAt(n.Line, "%s is a boolean in YAML 1.1 and text in YAML 1.2: quote it, or write true or false", n.Value)
	default: // text, and dates, which are text in JSON too
		w.text(n.Value)
	}
	return nil
}

// text appends a string as JSON.
func (w *walker) text(s string) {
	b, _ := json.Marshal(s) // a string always has JSON
	w.out = append(w.out, b...)
}

// isTooLarge reports whether the library reads a number as text because the number
// is out of range.
func isTooLarge(plain string) bool {
	_, err := strconv.ParseInt(strings.ReplaceAll(plain, "_", ""), 0, 64)
	return errors.Is(err, strconv.ErrRange) || json.Valid([]byte(plain))
}

func isYAML11Bool(plain string) bool {
	switch plain {
	case "yes", "Yes", "YES", "no", "No", "NO", "on", "On", "ON", "off", "Off", "OFF":
		return true
	}
	return false
}
