package coldjson_test

import (
	"bytes"
	"encoding/json"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cnibox/cnibox/internal/coldjson"
)

// Every has each kind of field that records and configurations have, and kinds
// that they do not have.
type Every struct {
	Base
	Text    string                     `json:"text,omitempty"`
	Hidden  string                     `json:"-"`
	Flag    bool                       `json:"flag"`
	Int     int                        `json:"int,omitempty"`
	Small   int8                       `json:"small"`
	Big     uint64                     `json:"big,omitempty"`
	Ptr     *int                       `json:"ptr,omitempty"`
	Float   float64                    `json:"float,omitempty"`
	Raw     json.RawMessage            `json:"raw,omitempty"`
	List    []string                   `json:"list"`
	Lists   [][]Inner                  `json:"lists,omitempty"`
	Inner   Inner                      `json:"inner,omitzero"`
	Inners  []*Inner                   `json:"inners,omitempty"`
	Map     map[string]bool            `json:"map,omitempty"`
	Maps    map[string]json.RawMessage `json:"maps,omitempty"`
	Any     any                        `json:"any,omitempty"`
	Time    time.Time                  `json:"time,omitzero"`
	Addr    netip.Addr                 `json:"addr,omitzero"`
	Addrs   []netip.Addr               `json:"addrs,omitempty"`
	Prefix  []netip.Prefix             `json:"prefix,omitempty"`
	IP      net.IP                     `json:"ip,omitempty"`
	DNS     types.DNS                  `json:"dns,omitzero"`
	Route   *types.Route               `json:"route,omitempty"`
	Bytes   []byte                     `json:"bytes,omitempty"`
	Named   Named                      `json:"named,omitempty"`
	Untaged string
	private string
}

// Base is embedded. A field of Every hides its field with the same name.
type Base struct {
	Text string `json:"text"`
	Name string `json:"name,omitempty"`
	List string `json:"base-list,omitempty"`
}

type Inner struct {
	A string `json:"a,omitempty"`
	B *Inner `json:"b,omitempty"`
}

type Named string

var seeds = []string{
	`{}`, `null`, ` { "text" : "x" } `, `{"text":"a","TEXT":"b"}`, `{"Text":"fold"}`, `{"name":"n","base-list":"l","list":["a","b"],"unknown":{"x":[1,2,{"y":null}]}}`,
	`{"flag":true,"int":-5,"small":127,"big":18446744073709551615,"ptr":3}`, `{"small":128}`, `{"big":-1}`, `{"int":1.5}`, `{"int":"1"}`, `{"int":1e2}`, `{"int":01}`,
	`{"float":1.5e-3}`, `{"raw":{"a": 1}}`, `{"raw":null}`, `{"list":null}`, `{"list":[]}`, `{"list":["a",null]}`, `{"lists":[[{"a":"1"}],[]]}`,
	`{"inner":{"a":"x","b":{"a":"y"}}}`, `{"inner":null,"inners":[null,{"a":"z"}]}`, `{"map":{"a":true,"b":false},"maps":{"x":[1]}}`, `{"any":{"k":[1,"2",null]}}`,
	`{"time":"2026-11-21T10:00:00Z"}`, `{"time":"nonsense"}`, `{"addr":"10.0.0.1","prefix":["10.0.0.0/8","fd00::/64"]}`, `{"addr":""}`, `{"addr":null}`, `{"addrs":["10.0.0.1","fd00::1%eth0"]}`, `{"addrs":["10.0.0.1",null]}`, `{"addrs":[""]}`, `{"addrs":["x"]}`, `{"addrs":[]}`, `{"addrs":null}`, `{"prefix":["x"]}`,
	`{"ip":"10.0.0.1"}`, `{"dns":{"nameservers":["1.1.1.1"],"search":[]}}`, `{"route":{"dst":"10.0.0.0/8","gw":"10.0.0.1","mtu":1400}}`, `{"bytes":"aGk="}`, `{"named":"n"}`,
	`{"Untaged":"u","private":"p","Hidden":"h","-":"m"}`, `{"text":"\u0041\n"}`, `{"text":"<&>"}`, "{\"text\":\"\u2028\"}", "{\"text\":\"\xff\"}", "{\"text\":\"a\x01\"}", `{"text":"ü"}`,
	`{"text":"a"}x`, `{"text":"a",}`, `{"text"}`, `[1]`, `"s"`, `{"text":"a"`, `{"raw":"\ud800"}`, `{"raw":"<"}`, `{"map":{"a":true,"a":false}}`, `{"list":["a"],"list":[]}`, `{"a":tru}`,
}

func equal(a, b any) string {
	return cmp.Diff(a, b, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmp.AllowUnexported(Every{}), cmpopts.EquateNaNs())
}

// FuzzUnmarshal compares decoded values, errors and the encoding of the values
// with encoding/json's.
func FuzzUnmarshal(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var want, have Every
		wantErr, haveErr := json.Unmarshal(data, &want), coldjson.Unmarshal(data, &have)
		if (wantErr == nil) != (haveErr == nil) || wantErr != nil && wantErr.Error() != haveErr.Error() {
			t.Fatalf("%q: error %v, want %v", data, haveErr, wantErr)
		}
		if diff := equal(want, have); diff != "" {
			t.Fatalf("%q: -want +have\n%s", data, diff)
		}
		sameText(t, want)
		sameText(t, &want)
		var known Every
		if coldjson.UnmarshalKnown(data, &known) {
			dec := json.NewDecoder(bytes.NewReader(data))
			dec.DisallowUnknownFields()
			if err := dec.Decode(new(Every)); err != nil {
				t.Fatalf("%q: every name is known, but %v", data, err)
			}
		}
	})
}

func sameText(t *testing.T, v any) {
	t.Helper()
	want, wantErr := json.Marshal(v)
	have, haveErr := coldjson.Marshal(v)
	if string(want) != string(have) || (wantErr == nil) != (haveErr == nil) {
		t.Fatalf("%#v:\nhave %s, %v\nwant %s, %v", v, have, haveErr, want, wantErr)
	}
}

// TestPlain: plain values are handled by this package and are not passed to
// encoding/json.
func TestPlain(t *testing.T) {
	in := `{"text":"x","name":"n","flag":true,"int":3,"list":["a"],"lists":[[{"a":"1"}]],"time":"2026-11-21T10:00:00Z","addr":"10.0.0.1","raw":{"a":[1]},"dns":{"nameservers":["1.1.1.1"]}}`
	var e Every
	if !coldjson.UnmarshalKnown([]byte(in), &e) {
		t.Error("a plain document was not decoded")
	}
	if coldjson.UnmarshalKnown([]byte(`{"text":"x","other":1}`), new(Every)) {
		t.Error("an unknown name was accepted as known")
	}
}

// TestMerge: if the target is not zero, encoding/json decodes into it, which merges.
func TestMerge(t *testing.T) {
	e := Every{Int: 5, Map: map[string]bool{"a": true}}
	if err := coldjson.Unmarshal([]byte(`{"text":"x","map":{"b":true}}`), &e); err != nil {
		t.Fatal(err)
	}
	if e.Int != 5 || !e.Map["a"] || !e.Map["b"] {
		t.Errorf("have %+v", e)
	}
}

// TestMarshalOdd uses values that JSON cannot represent.
func TestMarshalOdd(t *testing.T) {
	ring := &Inner{}
	ring.B = ring
	for _, v := range []any{
		nil, 1, "s<>&\x00\u2028\xff", []int(nil),
		[]int{1},
		map[string]int(nil),
		map[int]string{1: "a"},
		make(chan int), func() {}, 1.5,
		[2]int{1, 2},
		json.RawMessage(`{ "a" : "<" }`), json.RawMessage(`{`), json.RawMessage(nil),
		struct{ json.RawMessage }{json.RawMessage(`1`)},
		&[]string{"x"}, (*Inner)(nil),
		struct {
			time.Time
			X int `json:",string"`
		}{},
		[]any{1, "a", nil, map[string]any{"z": 1, "a": []byte("x")}},
		Every{private: "x"},
		ring,
	} {
		want, wantErr := json.Marshal(v)
		have, haveErr := coldjson.Marshal(v)
		if string(want) != string(have) || (wantErr == nil) != (haveErr == nil) {
			t.Errorf("%T:\nhave %s, %v\nwant %s, %v", v, have, haveErr, want, wantErr)
		}
	}
}
