package rawjson

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

func TestSet(t *testing.T) {
	for _, c := range []struct{ in, name, value, want string }{
		{`{}`, "a", `1`, `{"a":1}`},
		{` { } `, "a", `1`, ` {"a":1 } `},
		{`{"b": 1e400, "c":[1, {"a":2}]}`, "a", `"x"`, `{"a":"x","b": 1e400, "c":[1, {"a":2}]}`},
		{`{"b":"}\"{,", "a" : null , "c":3}`, "a", `{"k":1}`, `{"b":"}\"{,", "a" : {"k":1} , "c":3}`},
		{`{"a":1,"b":2,"a":3}`, "a", `4`, `{"a":4,"b":2,"a":4}`},
		{`{"\u0061":1}`, "a", `2`, `{"\u0061":2}`},
	} {
		have, err := Set([]byte(c.in), c.name, json.RawMessage(c.value))
		if err != nil || string(have) != c.want {
			t.Errorf("%s: set %s: have %s, %v, want %s", c.in, c.name, have, err, c.want)
		}
	}
	for _, in := range []string{``, `[]`, `"a"`, `{`, `{"a":1}x`, `null`} {
		if have, err := Set([]byte(in), "a", json.RawMessage(`1`)); err == nil {
			t.Errorf("%q: have %s, want an error", in, have)
		}
	}
	if _, err := Set([]byte(`{}`), "a", json.RawMessage(`1,`)); err == nil {
		t.Error("Set accepted a value that is not JSON")
	}
}

func TestGetAndRemove(t *testing.T) {
	in := []byte(`{"a":1, "b": {"a":2}, "a": 3}`)
	if v, err := Get(in, "a"); err != nil || string(v) != "3" {
		t.Errorf("have %s, %v", v, err)
	}
	if v, err := Get(in, "z"); err != nil || v != nil {
		t.Errorf("have %s, %v", v, err)
	}
	if v, err := Remove(in, "a"); err != nil || string(v) != `{"b":{"a":2}}` {
		t.Errorf("have %s, %v", v, err)
	}
	if v, err := Remove(in, "z"); err != nil || !bytes.Equal(v, in) {
		t.Errorf("have %s, %v", v, err)
	}
}

// FuzzSet compares the results with encoding/json's, which encodes the object
// again.
func FuzzSet(f *testing.F) {
	for _, s := range []string{`{}`, `{"a":1}`, `{"a":"\\\"","b":[{},"]"],"a":null}`, "\t{\n\"k\" : -1.5e3 }\r\n", `[`, `{"a":{"b":{"c":[[[]]]}}}`} {
		f.Add([]byte(s), "a")
	}
	f.Fuzz(func(t *testing.T, in []byte, name string) {
		name = strings.ToValidUTF8(name, "?")
		var want map[string]json.RawMessage
		valid := json.Unmarshal(in, &want) == nil && want != nil
		have, err := Set(in, name, json.RawMessage(`{"new":[1]}`))
		if valid != (err == nil) {
			t.Fatalf("%q: %v", in, err)
		}
		if !valid {
			return
		}
		want[name] = json.RawMessage(`{"new":[1]}`)
		var got map[string]json.RawMessage
		if err := json.Unmarshal(have, &got); err != nil {
			t.Fatalf("%q: %q: %v", in, have, err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%q: have %q, want %q", in, got, want)
		}
		without, err := Remove(have, name)
		if err != nil {
			t.Fatal(err)
		}
		delete(want, name)
		got = nil
		if err := json.Unmarshal(without, &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%q without %q: have %q, %v", have, name, without, err)
		}
	})
}
