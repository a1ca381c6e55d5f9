package yaml

import (
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Locate returns the path of a field, and its line. Path is for example "spec.ingress[0].from"; a field that is absent has the line of what
// contains it. If key is not "", Locate searches the first field of that name in the field with the path.
func Locate(doc []byte, path, key string) (at string, line int) {
	n, err := parse(doc)
	if err != nil {
		return path, ErrorLine(err)
	}
	line = n.Line
	for _, step := range steps(path) {
		next, keyLine := child(n, step)
		if next == nil {
			return path, line
		}
		n, line = next, keyLine
	}
	if key == "" {
		return path, line
	}
	if below, keyLine := search(n, path, key, 0); keyLine > 0 {
		return below, keyLine
	}
	return path, line
}

// steps divides a path: "a.b[0]" has the steps "a", "b" and "[0]".
func steps(path string) []string {
	return strings.FieldsFunc(strings.ReplaceAll(path, "[", ".["), func(r rune) bool { return r == '.' })
}

// child returns the node at one step, and the line of its key or item.
func child(n *yaml.Node, step string) (next *yaml.Node, line int) {
	if index, is := strings.CutPrefix(step, "["); is {
		i, err := strconv.Atoi(strings.TrimSuffix(index, "]"))
		if err != nil || n.Kind != yaml.SequenceNode || i < 0 || i >= len(n.Content) {
			return nil, 0
		}
		return n.Content[i], n.Content[i].Line
	}
	if n.Kind != yaml.MappingNode {
		return nil, 0
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == step {
			return n.Content[i+1], n.Content[i].Line
		}
	}
	return nil, 0
}

// search returns the path and the line of the first field of a name.
func search(n *yaml.Node, path, key string, depth int) (at string, line int) {
	if depth > maxDepth {
		return "", 0
	}
	for i, c := range n.Content {
		below := path
		switch n.Kind {
		case yaml.MappingNode:
			if i%2 == 0 {
				if c.Value == key {
					return path + "." + key, c.Line
				}
				continue
			}
			below += "." + n.Content[i-1].Value
		case yaml.SequenceNode:
			below += "[" + strconv.Itoa(i) + "]"
		}
		if at, line := search(c, below, key, depth+1); line > 0 {
			return at, line
		}
	}
	return "", 0
}

// ErrorLine returns the line in an error of ToJSON, or 0.
func ErrorLine(err error) int {
	if err == nil {
		return 0
	}
	m := regexp.MustCompile(`line (\d+)`).FindStringSubmatch(err.Error())
	if m == nil {
		return 0
	}
	line, _ := strconv.Atoi(m[1])
	return line
}
