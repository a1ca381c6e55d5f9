package rest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/store/cluster"
)

// thing is a kind that is read from protobuf.
type thing struct {
	Object
	Text string `json:"text" protobuf:"2"`
}

// member encodes one field of a message, number one.
func member(number int, v ...[]byte) []byte {
	all := bytes.Join(v, nil)
	b := binary.AppendUvarint(nil, uint64(number<<3|2))
	return append(binary.AppendUvarint(b, uint64(len(all))), all...)
}

func text(number int, s string) []byte { return member(number, []byte(s)) }

// wrapped returns a runtime.Unknown after its magic, as the server writes it.
func wrapped(kind string, object ...[]byte) []byte {
	return bytes.Join([][]byte{[]byte(protobufMagic), member(1, text(1, "v1"), text(2, kind)), member(2, object...), text(3, ""), text(4, "")}, nil)
}

// frame returns a WatchEvent after its length.
func frame(event string, object []byte) []byte {
	b := append(text(1, event), member(2, member(1, object))...)
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
}

func aThing(name, version, annotation, content string) []byte {
	meta := member(1, text(1, name), text(5, "uid"), []byte{7 << 3, 5}, text(6, version), member(12, text(1, "key"), text(2, annotation)), member(17, text(1, "ignored")))
	return wrapped("Thing", meta, text(2, content), []byte{9<<3 | 1, 1, 2, 3, 4, 5, 6, 7, 8}, []byte{10<<3 | 5, 1, 2, 3, 4})
}

var status410 = wrapped("Status", member(1), text(2, "Failure"), text(3, "too old resource version"), text(4, "Expired"),
	member(5, member(4, text(3, "metadata.uid"))), []byte{6 << 3, 0x9a, 0x03})

// A protobuf watch gives the same events as a JSON watch, wherever its bytes are split.
func TestProtobufEvents(t *testing.T) {
	stream := bytes.Join([][]byte{
		frame("ADDED", aThing("a", "5", "v", "one")),
		frame("BOOKMARK", wrapped("Thing", member(1, text(6, "7"), member(12, text(1, "k8s.io/initial-events-end"), text(2, "true"))))),
		frame("MODIFIED", aThing("a", "8", strings.Repeat("x", 100_000), "two")),
		frame("ERROR", status410),
	}, nil)
	for name, r := range map[string]io.Reader{"whole": bytes.NewReader(stream), "a byte at a time": iotest.OneByteReader(bytes.NewReader(stream))} {
		next := protobufEvents[*thing](r)
		kind, o, err := next()
		want := &thing{Object{Metadata: Metadata{Name: "a", UID: "uid", ResourceVersion: "5", Annotations: map[string]string{"key": "v"}}}, "one"}
		if diff := cmp.Diff(want, o); err != nil || kind != "ADDED" || diff != "" {
			t.Errorf("%s: %s %v %s", name, kind, err, diff)
		}
		if kind, o, err := next(); err != nil || kind != "BOOKMARK" || o.Metadata.ResourceVersion != "7" || o.Metadata.Annotations["k8s.io/initial-events-end"] != "true" {
			t.Errorf("%s: %s %+v %v", name, kind, o, err)
		}
		if _, o, err := next(); err != nil || len(o.Metadata.Annotations["key"]) != 100_000 || o.Text != "two" || want.Text != "one" {
			t.Errorf("%s: %v", name, err)
		}
		var status *StatusError
		if _, _, err := next(); !errors.As(err, &status) || !errors.Is(err, ErrExpired) || status.Code != 410 || !errors.Is(err, ErrConflict) || status.Message != "too old resource version" {
			t.Errorf("%s: %v", name, err)
		}
		if _, _, err := next(); !errors.Is(err, io.EOF) {
			t.Errorf("%s: after it %v", name, err)
		}
	}
	for name, b := range map[string][]byte{
		"cut length": {0, 0, 0}, "cut message": frame("ADDED", aThing("a", "1", "", ""))[:30], "cut at once": {0, 0, 1, 0},
		"too long": {0xff, 0xff, 0xff, 0xff}, "no mark": frame("ADDED", []byte("{}")), "no message": {0, 0, 0, 2, 0xff, 0xff},
	} {
		if _, _, err := protobufEvents[*thing](bytes.NewReader(b))(); err == nil || errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The client requests protobuf and accepts both formats, also in an error.
func TestProtobufRequested(t *testing.T) {
	var answer func(w http.ResponseWriter)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a := r.Header.Get("Accept"); !strings.HasPrefix(a, "application/vnd.kubernetes.protobuf;stream=watch, ") || !strings.Contains(a, "application/json") {
			t.Errorf("accepts %q", a)
		}
		answer(w)
	}))
	defer srv.Close()
	c, err := Open(Server(srv.URL))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	watch := func() (names []string, err error) {
		err = Watch(t.Context(), c, "/things", Since{Version: "1"}, func(e Event[*thing]) {
			if e.Object != nil {
				names = append(names, e.Type+" "+e.Object.Metadata.Name+" "+e.Object.Text)
			}
		})
		return names, err
	}
	for name, say := range map[string]func(w http.ResponseWriter){
		"protobuf": func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf;stream=watch")
			_, _ = w.Write(frame("ADDED", aThing("a", "1", "", "one")))
		},
		"JSON": func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"type":"ADDED","object":{"metadata":{"name":"a"},"text":"one"}}`)
		},
	} {
		answer = say
		if names, err := watch(); err != nil || len(names) != 1 || names[0] != "ADDED a one" {
			t.Errorf("%s: %q, %v", name, names, err)
		}
	}
	answer = func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", protobufType)
		w.WriteHeader(http.StatusGone)
		_, _ = w.Write(status410)
	}
	if _, err := watch(); !errors.Is(err, ErrExpired) || !strings.Contains(err.Error(), "410 Gone: too old resource version") {
		t.Errorf("refused: %v", err)
	}
	answer = func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", protobufType)
		_, _ = w.Write([]byte{0, 0, 0, 1, 0xff})
	}
	if _, err := watch(); !errors.Is(err, cluster.ErrUnavailable) {
		t.Errorf("nonsense: %v", err)
	}
}

// A protobuf list is read one object at a time, page by page.
func TestProtobufList(t *testing.T) {
	meta := func(next string) []byte { return member(1, text(2, "77"), text(3, next)) }
	item := func(name string) []byte {
		object, err := unwrap(aThing(name, "5", "v", "one"))
		if err != nil {
			t.Fatal(err)
		}
		return member(2, object)
	}
	pages := map[string][]byte{
		"":     wrapped("ThingList", meta("more"), item("a"), item("b")),
		"more": wrapped("ThingList", meta(""), item("c")),
	}
	cut := -1
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a := r.Header.Get("Accept"); a != "application/vnd.kubernetes.protobuf, application/json" {
			t.Errorf("accepts %q", a)
		}
		w.Header().Set("Content-Type", protobufType)
		b := pages[r.URL.Query().Get("continue")]
		if cut >= 0 {
			b = b[:min(cut, len(b))]
		}
		_, _ = w.Write(b)
	}))
	defer srv.Close()
	c, err := Open(Server(srv.URL))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	list := func() (names, version string, err error) {
		version, err = List(t.Context(), c, "/things", func(o *thing) { names += o.Metadata.Name })
		return names, version, err
	}
	if names, version, err := list(); err != nil || names != "abc" || version != "77" {
		t.Errorf("%q at %q, %v", names, version, err)
	}
	for cut = range len(pages[""]) - 4 { // the last fields of the wrapper do not matter
		if _, _, err := list(); !errors.Is(err, cluster.ErrUnavailable) {
			t.Errorf("cut at %d: %v", cut, err)
		}
	}
}

// FuzzProtobufList: any bytes are read or refused, and memory stays below the
// received size.
func FuzzProtobufList(f *testing.F) {
	f.Add(wrapped("ThingList", member(1, text(2, "77")), member(2, text(1, "x"))))
	f.Add(append([]byte(protobufMagic), 2<<3|2, 0xff, 0xff, 0xff, 0x7f))
	f.Fuzz(func(t *testing.T, b []byte) {
		count := 0
		resp := &http.Response{Body: io.NopCloser(bytes.NewReader(b))}
		_, err := readProtobufList(t.Context(), resp, func(*thing) bool { count++; return true })
		if count > len(b) {
			t.Errorf("%d objects of %d bytes, %v", count, len(b), err)
		}
	})
}

// FuzzProtobuf: any bytes are read or refused.
func FuzzProtobuf(f *testing.F) {
	f.Add(frame("ADDED", aThing("a", "5", "v", "one"))[4:])
	f.Add(frame("ERROR", status410)[4:])
	f.Fuzz(func(t *testing.T, b []byte) {
		kind, o, err := readEvent[*thing](b, layoutOf(reflect.TypeFor[thing]()))
		if err == nil && kind == "ERROR" && o != nil {
			t.Errorf("%s is an object", kind)
		}
		framed := append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
		next := protobufEvents[*thing](iotest.OneByteReader(bytes.NewReader(framed)))
		again, o2, err2 := next()
		if kind != again || (err == nil) != (err2 == nil) || err == nil && !cmp.Equal(o, o2) {
			t.Errorf("%v %v, %v %v", kind, err, again, err2)
		}
	})
}
