package netlist

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/roles"
)

func TestParse(t *testing.T) {
	for _, c := range []struct{ name, raw, version, faults string }{
		{"list", `{"name":"a","cniVersion":"1.0.0","plugins":[{"type":"bridge"},{"type":"portmap"}]}`, "1.0.0", ""},
		{"plugin", `{"name":"a","cniVersion":"0.4.0","type":"bridge"}`, "0.4.0", ""},
		{"no version", `{"name":"a","type":"bridge"}`, "1.1.0", ""},
		{"versions", `{"name":"a","cniVersions":["0.3.1","1.0.0","7.0.0"],"type":"bridge"}`, "1.0.0", ""},
		{"both", `{"name":"a","cniVersion":"1.1.0","cniVersions":["0.3.1"],"type":"bridge"}`, "1.1.0", ""},
		{"unspoken", `{"name":"a","cniVersion":"7.0.0","type":"bridge"}`, "", "cniVersion:"},
		{"everything", `{"cniVersions":["7"],"disableGC":1,"plugins":[{},7]}`, "", "cniVersion: name: disableGC: plugins[0].type: plugins[1]:"},
		{"no plugins", `{"name":"a","plugins":[]}`, "", "plugins:"},
		{"neither", `{"name":"a"}`, "", "plugins:"},
		{"wrong type", `{"name":7}`, "", "name:"},
	} {
		l, err := Parse([]byte(c.raw), "1.1.0")
		if c.faults == "" {
			if err != nil || l.CNIVersion != c.version {
				t.Errorf("%s: %+v, %v", c.name, l, err)
			}
			continue
		}
		if !errors.Is(err, roles.ErrConf) {
			t.Errorf("%s: error %v", c.name, err)
			continue
		}
		for want := range strings.FieldsSeq(c.faults) {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v does not name %s", c.name, err, want)
			}
		}
	}
}

// recorder is a Delegator that records its calls and fails the configured ones.
type recorder struct {
	roles.Delegator
	calls []string
	confs []string
	fail  string
	// missing are types that are not installed.
	missing []string
}

func (r *recorder) call(typ string, req *roles.Request) error {
	r.calls = append(r.calls, string(req.Verb)+" "+typ)
	r.confs = append(r.confs, string(req.Conf))
	if string(req.Verb)+" "+typ == r.fail {
		return errors.New("made to fail")
	}
	return nil
}

func (r *recorder) Add(_ context.Context, typ string, req *roles.Request) (*roles.Result, error) {
	if err := r.call(typ, req); err != nil {
		return nil, err
	}
	return &roles.Result{CNIVersion: roles.ResultVersion, Interfaces: []*roles.ResultInterface{{Name: typ}}}, nil
}

func (r *recorder) Find(typ string, _ *roles.Request) error {
	if slices.Contains(r.missing, typ) {
		return roles.ErrNoPlugin
	}
	return nil
}

func (r *recorder) InProcess(string, *roles.Request) bool { return true }

func (r *recorder) Del(_ context.Context, typ string, req *roles.Request) error {
	return r.call(typ, req)
}

func (r *recorder) Check(_ context.Context, typ string, req *roles.Request) error {
	return r.call(typ, req)
}

func (r *recorder) GC(_ context.Context, typ string, req *roles.Request) error {
	return r.call(typ, req)
}

func (r *recorder) Status(_ context.Context, typ string, req *roles.Request) error {
	return r.call(typ, req)
}

const three = `{"name":"n","cniVersion":"1.1.0","plugins":[
	{"type":"a","capabilities":{"mac":true},"big":123456789012345678901234567890,"args":{"labels":[1],"cni":{"x":1,"y":2}},"ipam":{"type":"i"}},
	{"type":"b","capabilities":{"ips":true,"mac":false}}, {"type":"c"}]}`

func parse(t *testing.T, raw string) *List {
	t.Helper()
	l, err := Parse([]byte(raw), "1.1.0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// A plugin's configuration has the keys that the spec requires of a runtime, and every
// other byte is unchanged.
func TestConf(t *testing.T) {
	r := &recorder{}
	_, err := parse(t, three).Add(t.Context(), r, Call{
		Request: &roles.Request{ContainerID: "c"}, Device: "0000:00:01.0", NoIPAM: true,
		Runtime: map[string]json.RawMessage{"mac": json.RawMessage(`"02:00:00:00:00:01"`), "ips": json.RawMessage(`["10.0.0.1"]`)},
		Args:    json.RawMessage(`{"y":3,"z":4}`),
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		`{"name":"n","cniVersion":"1.1.0","deviceID":"0000:00:01.0","pciBusID":"0000:00:01.0","runtimeConfig":{"mac":"02:00:00:00:00:01"},"type":"a","capabilities":{"mac":true},"big":123456789012345678901234567890,"args":{"labels":[1],"cni":{"z":4,"x":1,"y":3}}}`,
		`{"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"a"}]},"name":"n","cniVersion":"1.1.0","args":{"cni":{"z":4,"y":3}},"deviceID":"0000:00:01.0","pciBusID":"0000:00:01.0","runtimeConfig":{"ips":["10.0.0.1"]},"type":"b","capabilities":{"ips":true,"mac":false}}`,
		`{"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"b"}]},"name":"n","cniVersion":"1.1.0","args":{"cni":{"z":4,"y":3}},"deviceID":"0000:00:01.0","pciBusID":"0000:00:01.0","type":"c"}`,
	}
	if diff := cmp.Diff(want, r.confs); diff != "" {
		t.Error(diff)
	}
}

// If ADD of a plugin fails, DEL of the previous plugins runs in reverse order. The
// Delegator has run DEL of the failed plugin.
func TestAddTakesBack(t *testing.T) {
	r := &recorder{fail: "ADD c"}
	_, err := parse(t, three).Add(t.Context(), r, Call{Request: &roles.Request{}})
	if want := []string{"ADD a", "ADD b", "ADD c", "DEL b", "DEL a"}; err == nil || !slices.Equal(r.calls, want) {
		t.Errorf("%v, %v", r.calls, err)
	} else if errors.As(err, new(*roles.UndoError)) {
		t.Errorf("all was taken back: %v", err)
	}
	call := Call{Request: &roles.Request{}}
	for _, d := range []roles.Delegator{&stuck{recorder{fail: "ADD c"}}, &stuck{recorder{fail: "ADD b"}}} {
		if _, err := parse(t, three).Add(t.Context(), d, call); !errors.As(err, new(*roles.UndoError)) {
			t.Errorf("something is left: %v", err)
		}
	}
}

// stuck is a recorder whose DEL always fails.
type stuck struct{ recorder }

func (s *stuck) Del(context.Context, string, *roles.Request) error { return errors.New("stuck") }

// DEL continues after an error. GC needs a list of valid attachments, and every verb a
// version that has it.
func TestVerbs(t *testing.T) {
	l := parse(t, three)
	call := Call{Request: &roles.Request{}, Result: &roles.Result{}}
	r := &recorder{fail: "DEL c"}
	if err := l.Del(t.Context(), r, call); err == nil || !slices.Equal(r.calls, []string{"DEL c", "DEL b", "DEL a"}) {
		t.Errorf("%v, %v", r.calls, err)
	}
	if !strings.Contains(r.confs[2], `"prevResult":{`) {
		t.Errorf("DEL without the result: %s", r.confs[2])
	}
	for _, c := range []struct {
		version, key string
		check, gc    int
	}{{"0.3.1", "", 0, 0}, {"1.0.0", "", 3, 0}, {"1.1.0", "", 3, 3}, {"1.1.0", `"disableCheck":"true","disableGC":true,`, 0, 0}} {
		l := parse(t, strings.Replace(strings.Replace(three, "1.1.0", c.version, 1), "{", "{"+c.key, 1))
		check, gc, none := &recorder{}, &recorder{}, &recorder{}
		if err := errors.Join(l.Check(t.Context(), check, call), l.GC(t.Context(), gc, call, []roles.AttachmentID{}), l.GC(t.Context(), none, call, nil)); err != nil {
			t.Fatal(err)
		}
		if len(check.calls) != c.check || len(gc.calls) != c.gc || len(none.calls) != 0 {
			t.Errorf("%s %s: CHECK %v, GC %v, without a list %v", c.version, c.key, check.calls, gc.calls, none.calls)
		}
		for _, conf := range gc.confs {
			if !strings.Contains(conf, `"cni.dev/valid-attachments":[]`) || !strings.Contains(conf, `"cni.dev/attachments":[]`) {
				t.Errorf("GC with %s", conf)
			}
		}
	}
}

// ADD finds a missing plugin before it runs the first one.
func TestMissing(t *testing.T) {
	r := &recorder{missing: []string{"b", "i"}}
	_, err := parse(t, three).Add(t.Context(), r, Call{Request: &roles.Request{}})
	if !errors.Is(err, roles.ErrNoPlugin) || !strings.Contains(err.Error(), "plugins[0].ipam.type: ") || !strings.Contains(err.Error(), "plugins[1].type: ") || len(r.calls) != 0 {
		t.Errorf("%v, %v", r.calls, err)
	}
	r.missing = []string{"i"}
	if _, err := parse(t, three).Add(t.Context(), r, Call{Request: &roles.Request{}, NoIPAM: true}); err != nil {
		t.Errorf("an IPAM plugin that is not called: %v", err)
	}
}

// A fused list behaves as the list that it was made from.
func TestFused(t *testing.T) {
	fused, err := Fuse([]byte(three))
	if err != nil {
		t.Fatal(err)
	}
	l := parse(t, string(fused))
	if len(l.Plugins) != 1 || l.Plugins[0].Type != FusedType || len(l.Plugins[0].Fused) != 3 {
		t.Fatalf("%+v", l)
	}
	if diff := cmp.Diff(parse(t, three).Plugins, l.Unfused().Plugins, cmp.AllowUnexported(Plugin{})); diff != "" {
		t.Error(diff)
	}
	if !l.Can("mac") || !l.Can("ips") || l.Can("other") || !maps.Equal(l.Plugins[0].Capabilities, map[string]bool{"mac": true, "ips": true}) {
		t.Errorf("capabilities %v", l.Plugins[0].Capabilities)
	}
	off := strings.Replace(string(fused), `"type":"chain"`, `"type":"chain","disableCheck":true,"disableGC":"True"`, 1)
	r := &recorder{}
	if err := errors.Join(parse(t, off).Unfused().Check(t.Context(), r, Call{Request: &roles.Request{}}),
		parse(t, off).Unfused().GC(t.Context(), r, Call{Request: &roles.Request{}}, []roles.AttachmentID{})); err != nil || len(r.calls) != 0 {
		t.Errorf("%v, %v", r.calls, err)
	}
}

// Fuse and Split keep unknown keys, and Split is the inverse of Fuse.
func TestFuse(t *testing.T) {
	list := strings.Replace(three, "{", `{"disableCheck":true,"unknown":{"n":1e400,"a":[{}]},`, 1)
	fused, err := Fuse([]byte(list))
	if err != nil || !strings.Contains(string(fused), `"unknown":{"n":1e400,"a":[{}]}`) || !strings.Contains(string(fused), "123456789012345678901234567890") {
		t.Fatalf("%s, %v", fused, err)
	}
	back, err := Split(fused)
	if err != nil {
		t.Fatal(err)
	}
	var want, have bytes.Buffer
	if err := errors.Join(json.Compact(&want, []byte(list)), json.Compact(&have, back)); err != nil || want.String() != have.String() {
		t.Errorf("have %s\nwant %s, %v", &have, &want, err)
	}
	for _, c := range []struct {
		name string
		do   func([]byte) ([]byte, error)
		raw  string
	}{
		{"fuse again", Fuse, string(fused)},
		{"fuse a plugin", Fuse, `{"name":"a","type":"b"}`},
		{"fuse a list of one", Fuse, `{"name":"a","plugins":[{"type":"b"}]}`},
		{"fuse nonsense", Fuse, `7`},
		{"split a list", Split, list},
		{"split what has more", Split, strings.Replace(string(fused), `"type":"chain"`, `"type":"chain","args":{}`, 1)},
	} {
		if out, err := c.do([]byte(c.raw)); err == nil {
			t.Errorf("%s: %s", c.name, out)
		}
	}
}

// The first plugin of a list after another plugin gets the result of that plugin.
// TestFuseManaged: a list that another program reads again is not fused, and a fused one is recognised.
func TestFuseManaged(t *testing.T) {
	const plugins = `"plugins": [{"type": "bridge", "bridge": %q}, {"type": "portmap"}]`
	fused := `"plugins": [{"type": "chain", "plugins": [{"type": "bridge", "bridge": "cni-podman3"}, {"type": "portmap"}]}]`
	for raw, want := range map[string]string{
		`"name": "web", ` + fmt.Sprintf(plugins, "br0"):                                               "",
		`"name": "web", ` + fmt.Sprintf(plugins, "cni-podman3"):                                       "podman",
		`"name": "web", ` + fused:                                                                     "podman",
		`"name": "podman", ` + fmt.Sprintf(plugins, "br0"):                                            "podman",
		`"name": "web", "args": {"podman_labels": {"a": "b"}}, ` + fmt.Sprintf(plugins, "br0"):        "podman",
		`"name": "web", "nerdctlID": "1f", "nerdctlLabels": {}, ` + fmt.Sprintf(plugins, "br-1f0000"): "nerdctl",
	} {
		raw = `{"cniVersion": "1.0.0", ` + raw + `}`
		if have := ManagerOf([]byte(raw)); have != want {
			t.Errorf("%s: %q, want %q", raw, have, want)
		}
		if _, err := Fuse([]byte(raw)); (err == nil) != (want == "") {
			t.Errorf("%s: %v", raw, err)
		}
	}
}

func TestPrev(t *testing.T) {
	r := &recorder{}
	prev := &roles.Result{CNIVersion: roles.ResultVersion, Interfaces: []*roles.ResultInterface{{Name: "before"}}}
	if _, err := parse(t, three).Add(t.Context(), r, Call{Request: &roles.Request{}, Prev: prev}); err != nil || !strings.Contains(r.confs[0], `"name":"before"`) {
		t.Errorf("%s, %v", r.confs[0], err)
	}
}

// FuzzParse: every list that Parse accepts can be run, and its configurations are JSON.
func FuzzParse(f *testing.F) {
	f.Add(three, `{"a":1}`)
	f.Add(`{"name":"a","type":"b","args":null}`, `{}`)
	f.Add(`{"name":"a","type":"b","args":7}`, `{"x":[]}`)
	f.Fuzz(func(t *testing.T, raw, args string) {
		l, err := Parse([]byte(raw), "1.1.0")
		if err != nil {
			return
		}
		if fused, err := Fuse([]byte(raw)); err == nil {
			if _, err := Split(fused); err != nil {
				t.Errorf("%q: fused %q cannot be split: %v", raw, fused, err)
			}
		}
		r := &recorder{}
		_, _ = l.Add(t.Context(), r, Call{Request: &roles.Request{}, Args: json.RawMessage(args), NoIPAM: true, Device: "d"})
		for _, c := range r.confs {
			if !json.Valid([]byte(c)) {
				t.Errorf("%q: %q is no JSON", raw, c)
			}
		}
	})
}
