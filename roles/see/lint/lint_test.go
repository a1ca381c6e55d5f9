package lint

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/rolestest/tabletest"
)

type bridgeConf struct {
	roles.NetConf
	IsGateway bool `json:"isGateway"`
	Sets      []struct {
		ID   int               `json:"id"`
		Tags map[string]string `json:"tags"`
	} `json:"sets"`
	Args struct {
		CNI struct {
			MAC string `json:"mac"`
		} `json:"cni"`
	} `json:"args"`
}

type ipamConf struct {
	IPAM struct {
		Subnet string `json:"subnet"`
		Log    string `json:"log"`
	} `json:"ipam"`
}

func testTable() roles.Table {
	decode := func(into func() any) func([]byte) (roles.Handler, error) {
		return func(conf []byte) (roles.Handler, error) { return nil, roles.Decode(conf, into()) }
	}
	bridge, ipam, chained := func() any { return new(bridgeConf) }, func() any { return new(ipamConf) }, func() any { return new(roles.NetConf) }
	return tabletest.Of(
		roles.Role{Names: []string{"br"}, Kind: roles.Interface, Summary: "s", Conf: bridge, New: decode(bridge), Capabilities: []string{"mac"}},
		roles.Role{Names: []string{"ips"}, Kind: roles.IPAM, Summary: "s", Conf: ipam, New: decode(ipam), Capabilities: []string{"ips"}, Ignored: []string{"ipam.log"}},
		roles.Role{Names: []string{"ports"}, Kind: roles.Chained, Summary: "s", Conf: chained, New: decode(chained)},
		roles.Role{Names: []string{"shy"}, Kind: roles.Chained, Summary: "s", New: func([]byte) (roles.Handler, error) {
			return nil, fmt.Errorf("one thing: %w: %w", errors.New("a"), errors.New("b"))
		}},
	)
}

// newLinter finds every role and the plugins named "found".
func newLinter() *Linter {
	return &Linter{Table: testTable(), Find: func(typ string) (string, bool, bool) {
		_, ok := testTable().Lookup(typ)
		return "/bin/" + typ, ok, ok || typ == "found"
	}}
}

func TestLint(t *testing.T) {
	const head = `{"cniVersion":"1.0.0","name":"n","plugins":[`
	for name, tt := range map[string]struct {
		conf string
		want []string // path: message, faults with "!"
	}{
		"sound":           {head + `{"type":"br","isGateway":true,"sets":[{"id":1,"tags":{"any":"x"}}]},{"type":"ports"}]}`, nil},
		"no json":         {`{`, []string{"!: not JSON: unexpected end of JSON input"}},
		"no object":       {`[]`, []string{"!: is a JSON list, want an object"}},
		"nothing":         {`{}`, []string{": without cniVersion the version is 0.1.0, which has no chaining and no CHECK", "!: has no name", "!: has neither plugins nor a type"}},
		"plugins no list": {`{"cniVersion":"1.0.0","name":"n","plugins":{}}`, []string{"!plugins: is a JSON object, want a list"}},
		"plugins empty":   {`{"cniVersion":"1.0.0","name":"n","plugins":[]}`, []string{"!plugins: is empty"}},
		"versions no list": {
			`{"cniVersion":"1.0.0","cniVersions":"1.1.0","name":"n","plugins":[{"type":"br"}]}`,
			[]string{"!cniVersions: is a JSON string, want a list"},
		},
		"name no string": {`{"cniVersion":"1.0.0","name":1,"plugins":[{"type":"br"}]}`, []string{"!name: is a JSON number, want a string"}},
		"old single file": {
			`{"cniVersion":"0.4.0","name":"n","type":"br","isGateway":true}`, nil,
		},
		"new single file": {
			`{"cniVersion":"1.0.0","name":"n","type":"br"}`,
			[]string{": a file with one plugin and no list is no longer valid since CNI 1.0.0; most runtimes still read it"},
		},
		"flag as text":        {`{"cniVersion":"1.0.0","name":"n","disableCheck":"True","plugins":[{"type":"br"}]}`, nil},
		"unknown key":         {head + `{"type":"br","zzzzzzz":1}]}`, []string{"plugins[0].zzzzzzz: is not a key of br"}},
		"key in a list":       {head + `{"type":"br","sets":[{},{"idd":1}]}]}`, []string{"plugins[0].sets[1].idd: is not a key of br"}},
		"reserved keys":       {head + `{"type":"br","cni.dev/x":1,"args":{"cni":{"ips":[]},"other":{}}}]}`, nil},
		"key of the IPAM":     {head + `{"type":"br","ipam":{"type":"ips","subnet":"x"}}]}`, nil},
		"ignored by the IPAM": {head + `{"type":"br","ipam":{"type":"ips","log":"x"}}]}`, []string{"plugins[0].ipam.log: has no effect here"}},
		"key not of it":       {head + `{"type":"br","ipam":{"type":"ips","subnett":"x"}}]}`, []string{"plugins[0].ipam.subnett: is not a key of ips"}},
		"foreign IPAM":        {head + `{"type":"br","ipam":{"type":"found","whatever":1}}]}`, nil},
		"missing IPAM":        {head + `{"type":"br","ipam":{"type":"ipss"}}]}`, []string{`!plugins[0].ipam.type: plugin "ipss" is neither installed nor a role`}},
		"layer 2":             {head + `{"type":"br","ipam":{}}]}`, nil},
		"layer 2, spelt":      {head + `{"type":"br","ipam":{"type":""}}]}`, nil},
		"foreign plugin":      {head + `{"type":"found","whatever":1},{"type":"ports"}]}`, nil},
		"foreign, bad IPAM":   {head + `{"type":"found","ipam":{"type":"nowhere"}}]}`, []string{`!plugins[0].ipam.type: plugin "nowhere" is neither installed nor a role`}},
		"IPAM capability":     {head + `{"type":"br","ipam":{"type":"ips"},"capabilities":{"ips":true,"mac":true}}]}`, nil},
		"no capability":       {head + `{"type":"br","capabilities":{"ips":true,"other":false}}]}`, []string{"plugins[0].capabilities.ips: br does not read this capability"}},
		"foreign capability":  {head + `{"type":"br","ipam":{"type":"found"},"capabilities":{"other":true}}]}`, nil},
		"wrong type":          {head + `{"type":"br","isGateway":"yes"}]}`, []string{"!plugins[0].isGateway: is a JSON string, want bool"}},
		"not a ConfError":     {head + `{"type":"br"},{"type":"shy"}]}`, []string{"!plugins[1]: one thing: a: b"}},
		"chained first":       {head + `{"type":"ports"}]}`, []string{"!plugins[0]: ports needs the result of an earlier plugin and is first"}},
		"two interfaces":      {head + `{"type":"br"},{"type":"br"}]}`, []string{"plugins[1]: br makes the interface that br has made already"}},
		"IPAM in the list":    {head + `{"type":"br"},{"type":"ips"}]}`, []string{"!plugins[1]: ips is an IPAM plugin and cannot be a member of a list"}},
		"key twice":           {head + `{"type":"br","type":"br"}]}`, []string{"!plugins[0].type: is present twice; the last one is used"}},
		"deep":                {strings.Repeat("[", 20000) + strings.Repeat("]", 20000), []string{"!: not JSON: invalid character '[' exceeded max depth"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, f := range newLinter().Lint("f", []byte(tt.conf)) {
				s := f.Path + ": " + f.Message
				if f.Severity == Fault {
					s = "!" + s
				}
				got = append(got, s)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPositions(t *testing.T) {
	conf := "{\n\t\"näme\": 1, \"cniVersion\": \"1.0\", \"name\": \"n\",\n \"plugins\": [{\"type\": \"br\",\n  \"sets\": [{}, {\"id\": \"x\"}]}]}"
	var got []string
	for _, f := range newLinter().Lint("f", []byte(conf)) {
		got = append(got, fmt.Sprintf("%d:%d %s", f.Line, f.Column, f.Path))
	}
	// The decoder names the key and not the item, so the place is that of the list.
	want := []string{"2:2 näme", "2:27 cniVersion", "4:11 plugins[0].sets.id"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("positions (-want +got):\n%s", diff)
	}
}

func TestTooLarge(t *testing.T) {
	got := newLinter().Lint("f", make([]byte, MaxSize+1))
	if len(got) != 1 || !strings.Contains(got[0].Message, "larger than") {
		t.Errorf("findings %v", got)
	}
}

func TestSuggest(t *testing.T) {
	keys := []string{"isGateway", "isDefaultGateway", "ipMasq", "mtu", "bridge"}
	for word, want := range map[string]string{
		"isGatway": "isGateway", "ISGATEWAYS": "isGateway", "isDefautGateway": "isDefaultGateway", "ipmask": "ipMasq",
		"mut": "mtu", "brigde": "bridge", "x": "", "": "", "something": "",
	} {
		if got := Suggest(word, keys); got != want {
			t.Errorf("Suggest(%q) = %q, want %q", word, got, want)
		}
	}
}

// FuzzLint: lint accepts any content, and reports a fault if the content is not JSON.
func FuzzLint(f *testing.F) {
	files, err := filepath.Glob("../../../examples/*.conflist")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"plugins":[{"type":"br","ipam":{"type":"ips"},"sets":[[1],{"id":null}]}],"name":"\ud800"}`))
	f.Add([]byte(`{"type":"br","ipam":[],"capabilities":[],"dns":1}`))
	f.Add([]byte("{\"\xff\":1}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		found := newLinter().Lint("f", data)
		for _, x := range found {
			if x.Line < 1 || x.Column < 1 || x.Message == "" {
				t.Errorf("finding without a place or a text: %+v", x)
			}
		}
		Types(data)
	})
}
