package cloudsim

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// tree is metadata as a directory of texts, by the full paths of its leaves without a leading slash.
type tree map[string]string

// put adds a leaf, unless the text is empty: clouds answer 404 for absent data.
func (t tree) put(path, text string) {
	if text != "" {
		t[path] = text
	}
}

// find returns a leaf's text or the names in a directory, one a line without a final newline; names of directories end in a slash.
func (t tree) find(path string) (string, bool) {
	if text, ok := t[strings.TrimSuffix(path, "/")]; ok {
		return text, true
	}
	dir := strings.TrimSuffix(path, "/") + "/"
	if dir == "/" {
		dir = ""
	}
	var names []string
	for leaf := range t {
		rest, below := strings.CutPrefix(leaf, dir)
		if !below {
			continue
		}
		name, _, more := strings.Cut(rest, "/")
		if more {
			name += "/"
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), "\n"), len(names) > 0
}

// reply returns a path's answer.
func (t tree) reply(path string) reply {
	text, ok := t.find(path)
	if !ok {
		return page(http.StatusNotFound)
	}
	return answer(http.StatusOK, typeText, text)
}

// descend follows the parts of a path in JSON: keys, and indexes.
func descend(v any, parts []string) (any, bool) {
	for _, part := range parts {
		switch at := v.(type) {
		case map[string]any:
			next, ok := at[part]
			if !ok {
				return nil, false
			}
			v = next
		case []any:
			n, err := strconv.Atoi(part)
			if err != nil || n < 0 || n >= len(at) {
				return nil, false
			}
			v = at[n]
		default:
			return nil, false
		}
	}
	return v, true
}

// listing lists the names directly below v, one a line. Names of directories end in a slash. For a leaf it returns the leaf's text.
func listing(v any) string {
	var lines []string
	slash := func(v any) string {
		switch v.(type) {
		case map[string]any, []any:
			return "/"
		}
		return ""
	}
	switch v := v.(type) {
	case map[string]any:
		for name, below := range v {
			lines = append(lines, name+slash(below))
		}
		slices.Sort(lines)
	case []any:
		for i, below := range v {
			lines = append(lines, strconv.Itoa(i)+slash(below))
		}
	case string:
		return v
	default:
		return string(encode(v))
	}
	return strings.Join(lines, "\n")
}

// parts returns the parts of a path without empty ones.
func parts(path string) []string {
	return slices.DeleteFunc(strings.Split(path, "/"), func(s string) bool { return s == "" })
}

// encode returns v as JSON. It cannot fail for texts, numbers, and lists and maps of them.
func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}
