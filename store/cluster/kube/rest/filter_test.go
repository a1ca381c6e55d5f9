package rest

import (
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/store/cluster/web"
)

func TestFilter(t *testing.T) {
	s := shape{"a": nil, "b": shape{"c": nil}}
	for in, want := range map[string]string{
		`{}`:                        `{}`,
		`{"x":1}`:                   `{}`,
		`{"x":[{"a":1}],"a":[1,2]}`: `{"a":[1,2]}`,
		` { "a" : {"x": "}"} , "y" : "\"]" , "b" : { "d":1, "c" : null } } `: `{"a":{"x": "}"},"b":{"c":null}}`,
		`{"b":[{"c":1}],"a":-1.5e3}`:                                         `{"b":[{"c":1}],"a":-1.5e3}`,
		`{"b":null,"y":true}`:                                                `{"b":null}`,
		`[1]`:                                                                `[1]`,
		`"a"`:                                                                `"a"`,
	} {
		for _, r := range []io.Reader{strings.NewReader(in), iotest.OneByteReader(strings.NewReader(in))} {
			f := newFilter(r)
			var v any
			if err := f.decode(s, &v); err != nil || string(f.out) != want {
				t.Errorf("%s: %s, %v; want %s", in, f.out, err, want)
			}
			if err := f.decode(s, &v); !errors.Is(err, io.EOF) {
				t.Errorf("%s: after it %v", in, err)
			}
		}
	}
	for in, want := range map[string]error{
		`{"a":`: io.ErrUnexpectedEOF, `{"a`: io.ErrUnexpectedEOF, `{"x":[`: io.ErrUnexpectedEOF, `{"a":1]`: errJSON, `{a:1}`: errJSON, `{"a" 1}`: errJSON,
		`{"a":}`: errJSON, `{"a":nope}`: errJSON, `{"a":1 "b":2}`: errJSON, `]`: errJSON,
		`{"a":"` + strings.Repeat("x", maxObject+1<<20): web.ErrTooLarge, `{"x":"` + strings.Repeat("x", maxObject+1<<20): web.ErrTooLarge,
	} {
		var v any
		if err := newFilter(strings.NewReader(in)).decode(s, &v); !errors.Is(err, want) {
			t.Errorf("%.20s: %v, want %v", in, err, want)
		}
	}
}

// FuzzFilter: the wanted parts of each object are those that encoding/json reads, wherever the stream
// is split.
func FuzzFilter(f *testing.F) {
	f.Add([]byte(`{"metadata":{"name":"a","managedFields":[{"x":"]"}],"annotations":{"k":"v"}},"status":{},"spec":{"nodeName":"n"},"code":1}`))
	f.Add([]byte(`{"spec":null,"metadata":{"annotations":null}}`))
	wanted := shapeOf(reflect.TypeFor[Pod]())
	f.Fuzz(func(t *testing.T, doc []byte) {
		var tree any
		if json.Unmarshal(doc, &tree) != nil || otherCase(tree, wanted) {
			_ = newFilter(strings.NewReader(string(doc))).decode(wanted, &Pod{})
			return
		}
		doc, _ = json.Marshal(tree) // each name once, without escapes
		var want, got, cut Pod
		wantErr := json.Unmarshal(doc, &want)
		gotErr := newFilter(strings.NewReader(string(doc))).decode(wanted, &got)
		cutErr := newFilter(iotest.OneByteReader(strings.NewReader(string(doc)))).decode(wanted, &cut)
		if (wantErr == nil) != (gotErr == nil) || (gotErr == nil) != (cutErr == nil) {
			t.Fatalf("%s: %v, %v, %v", doc, wantErr, gotErr, cutErr)
		}
		if diff := cmp.Diff(want, got) + cmp.Diff(want, cut); diff != "" && wantErr == nil {
			t.Fatalf("%s: %s", doc, diff)
		}
	})
}

// otherCase reports whether a name differs from a wanted one in case only. encoding/json accepts such
// a name, and an API server never sends one.
func otherCase(v any, s shape) bool {
	switch v := v.(type) {
	case map[string]any:
		for name, inner := range v {
			for want, below := range s {
				if name != want && strings.EqualFold(name, want) || name == want && otherCase(inner, below) {
					return true
				}
			}
		}
	case []any:
		for _, inner := range v {
			if otherCase(inner, s) {
				return true
			}
		}
	}
	return false
}
