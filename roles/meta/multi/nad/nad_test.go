package nad

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/internal/smallfile"
)

const examples = "../../../../examples/"

// tree creates a directory of files.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestExamples finds each network of examples/. The reference's tests: "loads network from
// kubernetes custom resource", "… with an empty spec from disk".
func TestExamples(t *testing.T) {
	f := &Finder{Sources: []Source{Dir(examples + "multi.d")}, ConfDir: examples + "multi.net.d"}
	for name, want := range map[string][]string{
		"bridge-net": {"bridge", "tuning"}, "macvlan-net": {"macvlan"}, "ipvlan-net": {"ipvlan"}, "host-device-net": {"host-device"},
		"on-disk-net": {"ptp"}, "plain-net": {"bridge"},
	} {
		n, err := f.Network(t.Context(), "default", name)
		if err != nil {
			t.Error(err)
			continue
		}
		c, err := readConf(n.Conf)
		if err != nil {
			t.Fatal(err)
		}
		if c.Name != name || n.Name != name || n.Namespace != "default" || !cmp.Equal(want, c.types()) {
			t.Errorf("%s: found %+v %q", name, c, n.Conf)
		}
	}
}

// TestVerbatim: a configuration stays unchanged byte by byte, except for a missing name.
func TestVerbatim(t *testing.T) {
	const list = "{ \"cniVersion\":\"1.0.0\",\n\t\"name\" : \"other\", \"plugins\": [ {\"type\":\"x\", \"n\": 12345678901234567890123, \"n\": 1e400 } ],\"zzz\":{} }\n"
	const nameless = "{\n \"type\":\"thick\",\"name\":\"\" }"
	quoted, _ := json.Marshal(list)
	dir := tree(t, map[string]string{
		"ns/list.conflist": list,
		"ns/object.json":   `{"apiVersion":"k8s.cni.cncf.io/v1","kind":"NetworkAttachmentDefinition","metadata":{"name":"object","namespace":"ns","annotations":{"k8s.v1.cni.cncf.io/resourceName":"intel.com/sriov","x":"y"}},"spec":{"config":` + string(quoted) + `}}`,
		"ns/thick.conf":    nameless,
		"ns/bare.json":     ` {"type":"thick"}`,
		"ns/dotted.a.conf": list,
		"podman.conflist":  list,
		"ns/two.conflist":  list,
		"ns/two.yaml":      "broken: [",
	})
	f := &Finder{Sources: []Source{Dir(filepath.Join(dir, "absent")), Dir(dir)}}
	for _, c := range []struct{ namespace, name, want, resource string }{
		{"ns", "list", list, ""},
		{"ns", "object", list, "intel.com/sriov"},
		{"ns", "thick", "{\n \"type\":\"thick\",\"name\":\"thick\" }", ""},
		{"ns", "bare", ` {"name":"bare","type":"thick"}`, ""},
		{"ns", "dotted.a", list, ""},
		{"", "podman", list, ""},
		{"ns", "two", list, ""},
	} {
		n, err := f.Network(t.Context(), c.namespace, c.name)
		if err != nil {
			t.Error(err)
			continue
		}
		if string(n.Conf) != c.want || n.Resource != c.resource || n.Namespace != c.namespace || n.Name != c.name || !strings.HasPrefix(n.From, dir) {
			t.Errorf("%s: have %+v %s", c.name, n, n.Conf)
		}
	}
}

const object = "apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata: {name: x}\n"

// TestRefused: invalid files with their errors.
func TestRefused(t *testing.T) {
	for text, want := range map[string]string{
		"":                 "type: is missing",
		"null":             "type: is missing",
		"[]":               "is a JSON array, want object",
		"{":                "line 1",
		"a: &b c":          "anchors",
		`{"name":"x"}`:     "type: is missing: set type, or plugins",
		`{"plugins":[]}`:   "type: is missing",
		`{"type":1}`:       "type: is a JSON number",
		`{"type":"multi"}`: "is this plugin",
		`{"plugins":[{"type":"bridge"},{"type":"multus"}]}`:                                                  "is this plugin",
		object + "spec: {config: {type: bridge}}":                                                            "spec.config: must be a string",
		object + "spec: {config: '{\"type\":'}":                                                              "spec.config: network configuration",
		object + "spec: {config: '{}'}":                                                                      "spec.config: type: is missing",
		object + "spec: {config: '{\"type\":\"multi\"}'}":                                                    "is this plugin",
		object + "spec: {config: '{\"plugins\":[{\"type\":\"chain\",\"plugins\":[{\"type\":\"multi\"}]}]}'}": "is this plugin",
		object: "has no spec.config: network not found in /nowhere",
		strings.Replace(object, "name: x", "name: y", 1):               "metadata.name: \"y\" is not the file's name",
		strings.Replace(object, "{name: x}", "", 1):                    "metadata.name: \"\"",
		strings.Replace(object, "name: x", "namespace: y, name: x", 1): "metadata.namespace: \"y\" is not",
		strings.Replace(object, "/v1", "/v2", 1):                       "apiVersion: \"k8s.cni.cncf.io/v2\" is not known",
		strings.Replace(object, "kind: ", "kind: X", 1):                "kind: \"XNetwork",
		"kind: List\nitems: []":                                        "kind: \"List\" is not known",
		object + "---\n" + object:                                      "line 4",
	} {
		dir := tree(t, map[string]string{"ns/x.yaml": text})
		f := &Finder{Sources: []Source{Dir(dir)}, Self: []string{"multi", "multus"}, ConfDir: "/nowhere"}
		n, err := f.Network(t.Context(), "ns", "x")
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), `network "ns/x": `) || !strings.Contains(err.Error(), "ns/x.yaml") {
			t.Errorf("%q: have %v, %v, want %s", text, n, err, want)
		}
	}
}

// TestNamesStay: no name leads to a file outside the directory.
func TestNamesStay(t *testing.T) {
	const conf = `{"name":"secret","type":"x"}`
	dir := tree(t, map[string]string{"secret.conf": conf, "in/ns/own.conf": conf, "in/.conf": conf, "in/ns/-a.conf": conf})
	in := filepath.Join(dir, "in")
	for name, target := range map[string]string{"out": "../../secret.conf", "abs": filepath.Join(dir, "secret.conf"), "inside": "own.conf"} {
		if err := os.Symlink(target, filepath.Join(in, "ns", name+".conf")); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("..", filepath.Join(in, "up")); err != nil {
		t.Fatal(err)
	}
	f := &Finder{Sources: []Source{Dir(in)}}
	for _, c := range []struct{ namespace, name string }{
		{"ns", "../../secret"},
		{"..", "secret"},
		{".", "ns"},
		{"ns", ""},
		{"", ""},
		{"ns", "."},
		{"ns", "out"},
		{"ns", "abs"},
		{"up", "secret"},
		{"ns/..", "own"},
		{"ns", "own\x00"},
		{"ns\x00", "own"},
		{"/", "secret"},
		{"ns", "OWN"},
		{"ns", "-a"},
		{"n.s", "own"},
		{"ns", strings.Repeat("a", 254)},
	} {
		if n, err := f.Network(t.Context(), c.namespace, c.name); err == nil {
			t.Errorf("%q: found %s", c, n.From)
		}
	}
	if _, err := f.Network(t.Context(), "ns", "inside"); err != nil {
		t.Errorf("a link that stays (ConfigMaps have those): %v", err)
	}
}

// TestWritable: files that other users can write are rejected, because they name programs that run
// as root.
func TestWritable(t *testing.T) {
	for _, path := range []string{"ns/a.conf", "ns", "."} {
		dir := tree(t, map[string]string{"ns/a.conf": `{"type":"x"}`})
		f := &Finder{Sources: []Source{Dir(dir)}}
		if _, err := f.Network(t.Context(), "ns", "a"); err != nil {
			t.Fatal(err)
		}
		st, err := os.Stat(filepath.Join(dir, path))
		if err == nil {
			err = os.Chmod(filepath.Join(dir, path), st.Mode()|0o002)
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Network(t.Context(), "ns", "a"); !errors.Is(err, smallfile.ErrWritable) {
			t.Errorf("%s: %v", path, err)
		}
	}
	dir := tree(t, map[string]string{"ns/a.conf": `{"type":"x","` + strings.Repeat(" ", maxFile) + `":1}`})
	if _, err := Dir(dir).Object(t.Context(), "ns", "a"); !errors.Is(err, smallfile.ErrTooLarge) {
		t.Errorf("a large file: %v", err)
	}
}

// source returns the given answer.
type source struct {
	object *Object
	err    error
}

func (s source) Object(context.Context, string, string) (*Object, error) { return s.object, s.err }

// TestOrder: the first source that has the name is used. A source that cannot answer ends the
// search.
func TestOrder(t *testing.T) {
	down := errors.New("down")
	a := source{object: &Object{Namespace: "ns", Name: "x", Config: []byte(`{"type":"a"}`)}}
	b := source{object: &Object{Namespace: "ns", Name: "x", Config: []byte(`{"type":"b"}`)}}
	none := Dir("/nowhere/at/all")
	for _, c := range []struct {
		sources []Source
		want    string
		err     error
	}{
		{[]Source{a, b}, `{"name":"x","type":"a"}`, nil},
		{[]Source{none, b, source{err: down}}, `{"name":"x","type":"b"}`, nil},
		{[]Source{source{err: down}, b}, "", down},
		{[]Source{none, none}, "", ErrNotFound},
		{nil, "", ErrNotFound},
	} {
		n, err := (&Finder{Sources: c.sources}).Network(t.Context(), "ns", "x")
		if !errors.Is(err, c.err) || err == nil && string(n.Conf) != c.want {
			t.Errorf("%v: have %v, %v", c.sources, n, err)
		}
	}
	_, err := (&Finder{Sources: []Source{none, Dir("/elsewhere")}}).Network(t.Context(), "ns", "x")
	const want = `network "ns/x": network not found in /nowhere/at/all/ns/x.{conflist,conf,json,yaml}, nor in /elsewhere/ns/x.{conflist,conf,json,yaml}`
	if err == nil || err.Error() != want {
		t.Errorf("have %v\nwant %s", err, want)
	}
}

// TestOnDisk: the order of the standard, section 3.4.1.
func TestOnDisk(t *testing.T) {
	dir := tree(t, map[string]string{
		"10.conf": `{"name":"x","type":"conf"}`, "20.conflist": `{"name":"x","plugins":[{"type":"list"}]}`, "30.conflist": `{"name":"x","plugins":[{"type":"later"}]}`,
		"00-broken.conflist": "{", "05.json": `{"name":"y","type":"json"}`, "06.txt": `{"name":"z","type":"txt"}`, "07.conf": `{"type":"nameless"}`,
		"08.conf": `{"name":"self","type":"multi"}`, "sub.conf/x": "",
	})
	f := &Finder{ConfDir: dir, Self: []string{"multi"}, Sources: []Source{source{object: &Object{Namespace: "ns", Name: "x", Annotations: map[string]string{ResourceKey: "r"}}}}}
	n, err := f.Network(t.Context(), "ns", "x")
	if err != nil || n.From != filepath.Join(dir, "20.conflist") || n.Namespace != "ns" || n.Resource != "r" {
		t.Errorf("have %+v, %v", n, err)
	}
	f.Sources = nil
	if n, err = f.Default(t.Context(), "kube-system", "y"); err != nil || string(n.Conf) != `{"name":"y","type":"json"}` || n.Namespace != "" {
		t.Errorf("have %+v, %v", n, err)
	}
	if _, err = f.Default(t.Context(), "kube-system", "self"); err == nil || !strings.Contains(err.Error(), "is this plugin") {
		t.Errorf("have %v", err)
	}
	_, err = f.Default(t.Context(), "kube-system", "z")
	if !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "00-broken.conflist") || !strings.Contains(err.Error(), "07.conf: name: is missing") {
		t.Errorf("have %v", err)
	}
}

// TestDefault: the values for a default network. The reference's tests: "loads default network from
// NAD", "… from file by name", "… from a directory", "… from an absolute path".
func TestDefault(t *testing.T) {
	dir := tree(t, map[string]string{
		"d/00-multus.conflist": `{"name":"m","plugins":[{"type":"multus"}]}`, "d/10-flannel.conflist": `{"name":"cbr0","plugins":[{"type":"flannel"}]}`,
		"broken/00.conf": "x", "broken/10.conf": `{"name":"a","type":"b"}`, "empty/x.txt": "", "self/a.conf": `{"name":"a","type":"multus"}`,
		"objects/kube-system/net-a.conf": `{"type":"object"}`, "objects/kube-system/bad.conf": `{}`, "disk/a.conf": `{"name":"net-a","type":"disk"}`, "disk/b.conf": `{"name":"Net_B","type":"disk-b"}`,
	})
	down := errors.New("down")
	f := &Finder{Self: []string{"multus"}, ConfDir: filepath.Join(dir, "disk"), Sources: []Source{Dir(filepath.Join(dir, "objects"))}}
	for _, c := range []struct{ value, want, fault string }{
		{"net-a", `{"name":"net-a","type":"object"}`, ""},
		{"Net_B", `{"name":"Net_B","type":"disk-b"}`, ""},
		{"bad", "", "type: is missing"},
		{"none", "", "network not found in " + dir + "/objects/kube-system/none.{conflist,conf,json,yaml}, nor in " + dir + "/disk: no"},
		{dir + "/d", `{"name":"cbr0","plugins":[{"type":"flannel"}]}`, ""},
		{dir + "/d/10-flannel.conflist", `{"name":"cbr0","plugins":[{"type":"flannel"}]}`, ""},
		{dir + "/d/00-multus.conflist", "", "is this plugin"},
		{dir + "/broken", "", "00.conf"},
		{dir + "/empty", "", "network not found in " + dir + "/empty"},
		{dir + "/self", "", "network not found"},
		{dir + "/none", "", "no such file"},
		{"relative/path", "", "must be absolute"},
		{"", "", "network not found"},
	} {
		n, err := f.Default(t.Context(), "kube-system", c.value)
		switch {
		case c.fault != "" && (err == nil || !strings.Contains(err.Error(), c.fault)):
			t.Errorf("%s: have %v, want %s", c.value, err, c.fault)
		case c.fault == "" && (err != nil || string(n.Conf) != c.want):
			t.Errorf("%s: have %+v, %v", c.value, n, err)
		}
	}
	f.Sources = []Source{source{err: down}}
	if n, err := f.Default(t.Context(), "kube-system", "net-a"); err != nil || string(n.Conf) != `{"name":"net-a","type":"disk"}` {
		t.Errorf("the API is down: %v, %v", n, err)
	}
	if _, err := f.Default(t.Context(), "kube-system", "none"); !errors.Is(err, down) {
		t.Errorf("the API is down: %v", err)
	}
}

// FuzzFile: no input leads to a panic. An accepted configuration has a name and a plugin.
func FuzzFile(f *testing.F) {
	for _, s := range []string{object, object + "spec: {config: '{\"type\":\"x\"}'}", `{"type":"x"}`, `{"name":"a","plugins":[{"type":"x"}]}`, object + "spec:\n  config: |\n    {\"type\":\"x\", \"name\": \"\"}\n", ""} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		o, err := fromFile(raw, "ns", "x")
		if err != nil {
			return
		}
		n, err := (&Finder{}).networkOf(o)
		if err != nil {
			return
		}
		c, err := readConf(n.Conf)
		if err != nil || c.Name == "" || !json.Valid(n.Conf) {
			t.Fatalf("%q: %q, %v", raw, n.Conf, err)
		}
	})
}
