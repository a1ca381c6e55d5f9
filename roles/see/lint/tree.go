package lint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/cnibox/cnibox/internal/yaml"
)

// kind is the JSON type of a value for people.
type kind string

const (
	object kind = "object"
	array  kind = "list"
	text   kind = "string"
	number kind = "number"
	truth  kind = "bool"
	null   kind = "null"
)

// value is a JSON value with its position.
type value struct {
	kind    kind
	offset  int
	text    string // of a string
	truth   bool   // of a bool
	members []member
	items   []*value
}

// member is one key of an object.
type member struct {
	name   string
	offset int
	value  *value
}

// get returns the value of a key, or nil. The last duplicate is used, as in encoding/json.
func (v *value) get(key string) *value {
	if v == nil {
		return nil
	}
	for i := len(v.members) - 1; i >= 0; i-- {
		if v.members[i].name == key {
			return v.members[i].value
		}
	}
	return nil
}

// isTrue reports whether a value is true.
func (v *value) isTrue() bool { return v != nil && v.kind == truth && v.truth }

// treeParser builds the tree of a text that encoding/json has validated.
type treeParser struct {
	data []byte
	dec  *json.Decoder
}

// parse parses a JSON text. encoding/json limits the nesting.
func parse(data []byte) (*value, error) {
	var raw json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		return nil, err
	}
	p := &treeParser{data: data, dec: json.NewDecoder(bytes.NewReader(data))}
	p.dec.UseNumber()
	return p.value()
}

// next returns the next token and its position.
func (p *treeParser) next() (json.Token, int, error) {
	off := int(p.dec.InputOffset())
	for off < len(p.data) && strings.IndexByte(" \t\r\n,:", p.data[off]) >= 0 {
		off++
	}
	t, err := p.dec.Token()
	return t, off, err
}

func (p *treeParser) value() (*value, error) {
	t, off, err := p.next()
	if err != nil {
		return nil, err
	}
	v := &value{offset: off}
	switch t := t.(type) {
	case json.Delim:
		if t == '{' {
			v.kind = object
			return v, p.members(v)
		}
		v.kind = array
		return v, p.items(v)
	case string:
		v.kind, v.text = text, t
	case json.Number:
		v.kind = number
	case bool:
		v.kind, v.truth = truth, t
	default:
		v.kind = null
	}
	return v, nil
}

func (p *treeParser) members(v *value) error {
	for p.dec.More() {
		t, off, err := p.next()
		if err != nil {
			return err
		}
		name, ok := t.(string)
		if !ok {
			return fmt.Errorf("object key at offset %d is not a string", off)
		}
		child, err := p.value()
		if err != nil {
			return err
		}
		v.members = append(v.members, member{name, off, child})
	}
	_, err := p.dec.Token()
	return err
}

func (p *treeParser) items(v *value) error {
	for p.dec.More() {
		child, err := p.value()
		if err != nil {
			return err
		}
		v.items = append(v.items, child)
	}
	_, err := p.dec.Token()
	return err
}

// locate returns the offset of the deepest part of a path ("ipam.ranges[0].subnet")
// that exists below v.
func (v *value) locate(path string) int {
	for path != "" {
		var step string
		if strings.HasPrefix(path, "[") {
			step, path, _ = strings.Cut(path[1:], "]")
			i, err := strconv.Atoi(step)
			if err != nil || i < 0 || i >= len(v.items) {
				return v.offset
			}
			v = v.items[i]
		} else {
			end := strings.IndexAny(path, ".[")
			if end < 0 {
				end = len(path)
			}
			step, path = path[:end], path[end:]
			child := v.get(step)
			if child == nil {
				return v.offset
			}
			v = child
		}
		path = strings.TrimPrefix(path, ".")
	}
	return v.offset
}

// position converts an offset to a line and a column, both from 1. Columns count characters.
func position(data []byte, offset int) (line, column int) {
	offset = min(max(offset, 0), len(data))
	before := data[:offset]
	start := bytes.LastIndexByte(before, '\n') + 1
	return bytes.Count(before, []byte("\n")) + 1, utf8.RuneCount(before[start:]) + 1
}

// syntaxFault reports where a text is invalid JSON, with the usual reason.
func syntaxFault(data []byte, err error) Finding {
	f := Finding{Severity: Fault, Message: "not JSON: " + err.Error()}
	off := len(data)
	var se *json.SyntaxError
	if errors.As(err, &se) {
		off = int(se.Offset) - 1
		if se.Offset >= int64(len(data)) && !json.Valid(data) && strings.HasPrefix(err.Error(), "unexpected end") {
			off = len(data)
		}
	}
	f.Line, f.Column = position(data, off)
	rest := data[min(max(off, 0), len(data)):]
	switch {
	case isYAML(data):
		f.Message = "is YAML, and runtimes read JSON only"
		f.Hint = "turn it into JSON (yq -o=json); only multi takes YAML, from its own directory of networks"
	case bytes.HasPrefix(rest, []byte("/")) || bytes.HasPrefix(rest, []byte("#")):
		f.Hint = "JSON has no comments"
	case bytes.HasPrefix(rest, []byte("}")) || bytes.HasPrefix(rest, []byte("]")):
		f.Hint = "no comma may stand before the closing bracket"
	}
	return f
}

// isYAML reports whether an invalid JSON text is a YAML mapping with keys in YAML style. A text
// that begins with a bracket is invalid JSON.
func isYAML(data []byte) bool {
	if bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) {
		return false
	}
	doc, err := yaml.ToJSON(data)
	return err == nil && bytes.HasPrefix(doc, []byte("{"))
}
