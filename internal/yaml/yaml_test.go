package yaml

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

// accepted returns documents and their JSON.
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
		"? a\n: b":                                  `{"a":"b"}`,
		"a: [b: 1]":                                 `{"a":[{"b":1}]}`,
		"--- a":                                     `"a"`,
		"a: 2001-12-14":                             `{"a":"2001-12-14"}`,
		"a: {\n\tb: 1}":                             `{"a":{"b":1}}`,
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

// TestRefused checks the errors of refused documents.
func TestRefused(t *testing.T) {
	for doc, want := range map[string]string{
		"a: &x 1\nb: *x":                         "line 1: anchors",
		"b: *x":                                  "line 1: unknown anchor",
		"a: &x [*x]":                             "line 1: anchors",
		"a: 1\nb: !!str 2":                       "line 2: tags",
		"a: 1\nb: !mine {c: 2}":                  "line 2: tags",
		"!!str a: 1":                             "line 1: tags",
		"%YAML 1.2\n---\na":                      "directives",
		"# c\n\n%TAG ! tag:x,2000:\n---\na":      "line 3: directives",
		"a: 1\n---\nb: 2":                        "line 2: one document",
		"? [a]\n: b":                             "a key cannot be",
		"? {a: 1}\n: b":                          "a key cannot be",
		"<<: {a: 1}":                             "merge keys",
		"a: 1\na: 2":                             `line 2: key "a" is given twice`,
		"{a: 1, a: 2}":                           `key "a" is given twice`,
		"a: 1\n\"a\": 2":                         `key "a" is given twice`,
		"a: yes":                                 "quote it",
		"a: [on]":                                "quote it",
		"1: x":                                   "quote it",
		"~: x":                                   "quote it",
		": x":                                    "did not find expected key",
		"{on: x}":                                "quote it",
		"true: x":                                "quote it",
		"a: 0644":                                "quote it",
		"a: 0x1f":                                "quote it",
		"a: 0x1fffffffffffffffffffffffff":        "quote it",
		"a: 0o17":                                "quote it",
		"a: 1_000":                               "quote it",
		"a: +1":                                  "quote it",
		"a: 9e449":                               "quote it",
		"a: .5":                                  "quote it",
		"a: .inf":                                "quote it",
		"a:\n\tb: 1":                             "line 2: found character that cannot start any token",
		"a: 1\n  b: 2":                           "line 2: mapping values are not allowed",
		"a:\n    b: 1\n  c: 2":                   "did not find expected key",
		"a: b: c":                                "line 1: mapping values are not allowed",
		"a: - b":                                 "line 1: block sequence entries are not allowed",
		"a: [1, 2":                               "line 1: did not find expected ',' or ']'",
		"a: {b: 1":                               "line 1: did not find expected ',' or '}'",
		"a: {b}":                                 "want a colon",
		"a: {b: , c: 1}":                         "want a colon",
		"a: 'b":                                  "found unexpected end of stream",
		"a: \"\\q\"":                             "unknown escape",
		"a: \"\\ud800\"":                         "invalid Unicode character",
		"a: 'b' c":                               "did not find expected key",
		"a: @b":                                  "cannot start any token",
		"a: %b":                                  "cannot start any token",
		"a: 1\nb":                                "could not find expected ':'",
		"a: |x\n  b":                             "did not find expected",
		"a\x00b":                                 "control character",
		"a: b\u0085c":                            "line 1: a Unicode line break",
		"a: \xff":                                "UTF-8",
		"\xff\xfea\x00:\x00 \x001\x00":           "UTF-8",
		strings.Repeat("k", 1200) + ": 1":        "line 1: mapping values are not allowed",
		"{" + strings.Repeat("k", 1200) + ": 1}": "line 1: did not find expected",
		strings.Repeat("- ", 100):                "deep",
		strings.Repeat("[", 10000):               "line 1:",
	} {
		got, err := ToJSON([]byte(doc))
		if !errors.Is(err, ErrSyntax) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80q: %s, %v; want %q", doc, got, err, want)
		}
	}
}

// TestHostile bounds time and memory for documents that are expensive to parse.
func TestHostile(t *testing.T) {
	fill := func(s string) string { return strings.Repeat(s, maxSize/len(s)) }
	for name, c := range map[string]struct {
		doc string
		ok  bool
	}{
		"keys":            {numbered("k%d: v\n", 60000), true},
		"flow keys":       {"{" + numbered("k%d: v,\n", 60000) + "}", true},
		"equal keys":      {strings.Repeat("k: v\n", 60000), false},
		"aliases":         {"a: &a [x,x]\n" + numbered("b%d: *a\n", 60000), false},
		"block sequences": {fill("- "), false},
		"flow sequences":  {fill("["), false},
		"flow mappings":   {fill("{a: "), false},
		"complex keys":    {fill("? "), false},
		"closed":          {strings.Repeat("[", 9000) + "a" + strings.Repeat("]", 9000), false},
		"indented":        {indented(1500), false},
		"items":           {"[" + fill("a,") + "]", false}, // larger than maxSize
		"many items":      {"[" + strings.Repeat("a,", 200000) + "]", true},
		"comments":        {fill("# c\n") + "\na: 1", false}, // larger than maxSize
		"many comments":   {strings.Repeat("a: # c\n # d\n - 1\n #e\n\n#f\n", 1) + strings.Repeat("# c\n", 200000), true},
		"commented items": {strings.Repeat("- a # c\n# d\n\n", 60000), true},
		"blanks":          {"a: b" + strings.Repeat("\n", 1<<20), true},
		"folded":          {"a: >" + strings.Repeat("\n b", 200000), true},
		"quotes":          {"a: '" + strings.Repeat("''", 200000) + "'", true},
		"colons":          {strings.Repeat(":", 1<<20), false},
		"open quotes":     {strings.Repeat("'", 1<<20+1), false},
		"tags":            {fill("!a "), false},
		"dashes":          {strings.Repeat("-\n", 1<<19), true},
		"documents":       {strings.Repeat("---\n", 1<<18), false},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			begin := time.Now()
			_, err := ToJSON([]byte(c.doc))
			took := time.Since(begin)
			runtime.ReadMemStats(&after)
			mib := (after.TotalAlloc - before.TotalAlloc) >> 20
			t.Logf("%d bytes: %v, %d MiB allocated, %.100v", len(c.doc), took, mib, err)
			if (err == nil) != c.ok {
				t.Errorf("error %.200v", err)
			}
			if took > 10*time.Second || mib > 512 {
				t.Errorf("took %v and %d MiB", took, mib)
			}
		})
	}
}

func numbered(format string, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

// indented nests block mappings, each further to the right.
func indented(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	return b.String()
}

// TestFiles reads a file of each kind that the package's documentation lists.
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

// compare checks that the library's own decoder returns the same values for a document that ToJSON
// accepts. Documents with dates, which are texts for ToJSON, are skipped.
func compare(t *testing.T, doc []byte) {
	t.Helper()
	out, err := ToJSON(doc)
	if err != nil {
		return
	}
	if json.Valid(doc) {
		return // ToJSON returned it unchanged
	}
	var got, want any
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%q: %q is not JSON: %v", doc, out, err)
	}
	if err := yaml.Unmarshal(doc, &want); err != nil {
		t.Fatalf("%q: is %s here, the library says %v", doc, out, err)
	}
	dates := false
	if want = plain(want, &dates); dates || want == nil && got == nil {
		return
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("%q: library (-), here (+):\n%s", doc, diff)
	}
}

// plain converts the library's values to those of encoding/json.
func plain(v any, dates *bool) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = plain(v[k], dates)
		}
	case map[any]any:
		out := map[string]any{}
		for k := range v {
			if _, ok := k.(time.Time); ok {
				*dates = true
			}
			out[fmt.Sprint(k)] = plain(v[k], dates)
		}
		return out
	case []any:
		for i := range v {
			v[i] = plain(v[i], dates)
		}
	case time.Time:
		*dates = true
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
