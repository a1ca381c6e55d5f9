package recording

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strconv"

	"github.com/cnibox/cnibox/roles/see/view"
)

// Night is the file of a night.
type Night struct {
	// Healthy is the neighbour. Broken is nil for a night without a broken node.
	Healthy, Broken *Recording
}

// file is a Night whose broken node has only the records that the neighbour has not, or has otherwise. Of Without the neighbour alone is asked.
type file struct {
	Recording
	Broken *struct {
		Recording
		Without []string `json:"without,omitempty"`
	} `json:"broken,omitempty"`
}

// Read reads a night.
func Read(name string) (*Night, error) {
	raw, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var f file
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	n := &Night{Healthy: &f.Recording}
	if f.Broken != nil {
		n.Broken = &Recording{f.Broken.Commands, maps.Clone(f.Records)}
		maps.Copy(n.Broken.Records, f.Broken.Records)
		maps.DeleteFunc(n.Broken.Records, func(question string, _ view.Record) bool { return slices.Contains(f.Broken.Without, question) })
	}
	return n, nil
}

// Write writes a night, a record a line.
func (n *Night) Write(name string) error {
	w := writer{}
	w.text("{\n")
	w.recording(n.Healthy)
	if n.Broken != nil {
		w.text(",\n\"broken\": {\n")
		other := &Recording{n.Broken.Commands, map[string]view.Record{}}
		var without []string
		for question, r := range n.Broken.Records {
			if h, is := n.Healthy.Records[question]; !is || !reflect.DeepEqual(h, r) {
				other.Records[question] = r
			}
		}
		for _, question := range slices.Sorted(maps.Keys(n.Healthy.Records)) {
			if _, is := n.Broken.Records[question]; !is {
				without = append(without, question)
			}
		}
		w.recording(other)
		if len(without) > 0 {
			w.text(",\n\"without\": ")
			w.value(without)
		}
		w.text("\n}")
	}
	w.text("\n}\n")
	return errors.Join(append(w.errs, os.WriteFile(name, w.b.Bytes(), 0o644))...) //nolint:gosec // the repository's files can be read
}

// writer writes JSON.
type writer struct {
	b    bytes.Buffer
	errs []error
}

func (w *writer) text(s string) { w.b.WriteString(s) }

func (w *writer) value(v any) {
	e := json.NewEncoder(&w.b)
	e.SetEscapeHTML(false)
	w.errs = append(w.errs, e.Encode(v))
	w.b.Truncate(w.b.Len() - 1) // the line's end
}

func (w *writer) recording(r *Recording) {
	w.text("\"commands\": [")
	for i, c := range r.Commands {
		w.text(separator(i))
		w.value(c)
	}
	w.text("\n], \"records\": {")
	for i, question := range slices.Sorted(maps.Keys(r.Records)) {
		w.text(separator(i) + strconv.Quote(question) + ": ")
		w.value(r.Records[question])
	}
	w.text("\n}")
}

// separator begins a line for each of several values.
func separator(i int) string {
	if i == 0 {
		return "\n"
	}
	return ",\n"
}

// all returns the recordings of the nodes.
func (n *Night) all() []*Recording {
	if n.Broken == nil {
		return []*Recording{n.Healthy}
	}
	return []*Recording{n.Healthy, n.Broken}
}
