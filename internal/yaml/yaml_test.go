package yaml

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	complete "go.yaml.in/yaml/v3"
)

// accepted are documents and what they mean.
func accepted() map[string]string {
	return map[string]string{
		"":                             `null`,
		"# only a comment":             `null`,
		"---\n":                        `null`,
		`{"a": 1.50}`:                  `{"a": 1.50}`,
		"a: 1\nb: -2.5e3\nc: true":     `{"a":1,"b":-2.5e3,"c":true}`,
		"a:\nb: ~\nc: null":            `{"a":null,"b":null,"c":null}`,
		"a: b c  # d\n#e\nf: g#h":      `{"a":"b c","f":"g#h"}`,
		"a: b:c\nurl: https://[::1]:6": `{"a":"b:c","url":"https://[::1]:6"}`,
		"mac: 02:00:00:00:00:01":       `{"mac":"02:00:00:00:00:01"}`,
		"ip: 10.0.0.1\nv: 1.2.3":       `{"ip":"10.0.0.1","v":"1.2.3"}`,
		"- a\n- - b\n  - c\n- d: 1\n  e: 2\n-\n  f": `["a",["b","c"],{"d":1,"e":2},"f"]`,
		"a:\n- 1\n- 2\nb: 3":                        `{"a":[1,2],"b":3}`,
		"a:\n  - b: 1\n    c:\n    - 2\n  - d\n":    `{"a":[{"b":1,"c":[2]},"d"]}`,
		"a: {b: [1, 'x', \"y\"], c: {}}\nd: []":     `{"a":{"b":[1,"x","y"],"c":{}},"d":[]}`,
		"a: [1,\n  2,\n]":                           `{"a":[1,2]}`,
		"{a: {\"b\":1}}":                            `{"a":{"b":1}}`,
		"a: 'it''s'\n'b c': \"\\u00e9\\n\\x41\"":    `{"a":"it's","b c":"é\nA"}`,
		"a: one\n  two\n\n  three\nb: 1":            `{"a":"one two\nthree","b":1}`,
		"a: 'one\n  two\n\n\n  three'":              `{"a":"one two\n\nthree"}`,
		"a: \"one \\\n  two\"":                      `{"a":"one two"}`,
		"a: |\n  x\n   y\n\n  z\n\nb: 1":            `{"a":"x\n y\n\nz\n","b":1}`,
		"a: |-\n  x\n  y\n":                         `{"a":"x\ny"}`,
		"a: |+\n  x\n\n\nb: 1":                      `{"a":"x\n\n\n","b":1}`,
		"a: >\n  x\n  y\n\n  z\n   w\n  v\n":        `{"a":"x y\nz\n w\nv\n"}`,
		"a: |2\n   x\n  y":                          `{"a":" x\ny"}`,
		"a: | # c\n  # no comment\nb: 1":            `{"a":"# no comment\n","b":1}`,
		"- |\n x\n- >-\n y\n z":                     `["x\n","y z"]`,
		"--- # c\na: 1\n...\n# end":                 `{"a":1}`,
		"\ufeffa: 1\r\nb: |\r\n  x\r\n":             `{"a":1,"b":"x\n"}`,
		"a: -\tb":                                   ``,
		"plain":                                     `"plain"`,
		"a: <<":                                     `{"a":"\u003c\u003c"}`,
	}
}

func TestAccepted(t *testing.T) {
	for doc, want := range accepted() {
		got, err := ToJSON([]byte(doc))
		if want == "" {
			if err == nil {
				t.Errorf("%q: %s", doc, got)
			}
			continue
		}
		if err != nil || string(got) != want {
			t.Errorf("%q:\n got %s, %v\nwant %s", doc, got, err, want)
		}
		compare(t, []byte(doc))
	}
}

// What is refused, and the words that say why.
func TestRefused(t *testing.T) {
	for doc, want := range map[string]string{
		"a: &x 1\nb: *x":                         "line 1: anchors",
		"a: 1\nb: !!str 2":                       "line 2: tags",
		"%YAML 1.2\n---\na":                      "directives",
		"a: 1\n---\nb: 2":                        "line 2: one document",
		"? a\n: b":                               "keys of several lines",
		"<<: {a: 1}":                             "merge keys",
		"a: 1\na: 2":                             `line 2: key "a" is given twice`,
		"{a: 1, a: 2}":                           `key "a" is given twice`,
		"a: yes":                                 "quote it",
		"1: x":                                   "quote it",
		"{on: x}":                                "quote it",
		"a: 0644":                                "quote it",
		"a: 0x1f":                                "quote it",
		"a: 1_000":                               "quote it",
		"a: 9e449":                               "quote it",
		"a: .5":                                  "quote it",
		"a: .inf":                                "quote it",
		"a:\n\tb: 1":                             "line 2: a tab",
		"a: 1\n  b: 2":                           "line 2: a key inside a value",
		"a:\n    b: 1\n  c: 2":                   "line 3",
		"a: b: c":                                "a key inside a value",
		"a: - b":                                 "a line of its own",
		"a: [1, 2":                               "not closed",
		"a: {b: 1":                               "",
		"a: {b}":                                 "want a colon",
		"a: [b: 1]":                              "braces",
		"a: 'b":                                  "not closed",
		"a: \"\\q\"":                             "unknown escape",
		"a: \"\\ud800\"":                         "no character",
		"a: 'b' c":                               "unexpected",
		"a: @b":                                  "quote it",
		"a: %b":                                  "quote it",
		"a: 1\nb":                                "no key",
		"a: |x\n  b":                             "unexpected",
		"a\x00b":                                 "control character",
		"a: \xff":                                "UTF-8",
		strings.Repeat("k", 1200) + ": 1":        "a key of more than",
		"{" + strings.Repeat("k", 1200) + ": 1}": "a key of more than",
		strings.Repeat("- ", 100):                "deep",
		strings.Repeat("[", 10000):               "deep",
	} {
		got, err := ToJSON([]byte(doc))
		if !errors.Is(err, ErrSyntax) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %s, %v; want %q", doc, got, err, want)
		}
	}
}

// The files in testdata are of the two kinds that this package is for; the JSON
// beside each is what it means.
func TestFiles(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no files", err)
	}
	for _, path := range files {
		doc, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ToJSON(doc); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		compare(t, doc)
	}
}

// compare checks that a complete library takes what ToJSON takes, for the same.
func compare(t *testing.T, doc []byte) {
	t.Helper()
	out, err := ToJSON(doc)
	if err != nil {
		return
	}
	if json.Valid(doc) {
		return // what JSON says is not YAML's to judge
	}
	var got, want any
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%q: %q is no JSON: %v", doc, out, err)
	}
	if err := complete.Unmarshal(doc, &want); err != nil {
		t.Fatalf("%q: is %s here, the library says %v", doc, out, err)
	}
	if want = plain(want); want == nil && got == nil {
		return
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("%q: library (-), here (+):\n%s", doc, diff)
	}
}

// plain turns what the library reads into what encoding/json reads.
func plain(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = plain(v[k])
		}
	case map[any]any:
		out := map[string]any{}
		for k := range v {
			out[fmt.Sprint(k)] = plain(v[k])
		}
		return out
	case []any:
		for i := range v {
			v[i] = plain(v[i])
		}
	case int:
		return float64(v)
	case int64:
		return float64(v)
	case uint64:
		return float64(v)
	}
	return v
}

func FuzzToJSON(f *testing.F) {
	for doc := range accepted() {
		f.Add([]byte(doc))
	}
	files, _ := filepath.Glob("testdata/*.yaml")
	for _, path := range files {
		if doc, err := os.ReadFile(path); err == nil {
			f.Add(doc)
		}
	}
	f.Fuzz(func(t *testing.T, doc []byte) { compare(t, doc) })
}
