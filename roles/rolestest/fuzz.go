package rolestest

import (
	"encoding/json"
	"testing"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/roles/call/result"
)

// FuzzBuild is the fuzz target of an interface role: no configuration and no result of
// an IPAM plugin causes a panic, the spec of a valid configuration has objects, and CHECK
// accepts the role's own result. It gets the value that Observe would have returned, and
// the first configurations.
func FuzzBuild(f *testing.F, role roles.Role, observed any, confs ...string) {
	f.Helper()
	for _, conf := range append(confs, `[]`, `{"prevResult":1}`, `{"ipam":{"type":7},"dns":{"search":[]}}`) {
		for _, answer := range []string{
			``,
			`{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24","gateway":"10.1.0.1"},{"address":"fd00:1::2/64"}],
				"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0","gw":"fe80::1","mtu":1400,"table":7,"scope":253}],"dns":{"domain":"d.example"}}`,
			`{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/32","gateway":"fd00::1"}],"routes":[null]}`,
			`{"cniVersion":"0.3.1","ips":[{"version":"4","address":"0.0.0.0/0","gateway":"255.255.255.255"}]}`,
		} {
			f.Add([]byte(conf), []byte(answer))
		}
	}
	g := Golden{Observed: func([]byte) (any, error) { return observed, nil }}
	f.Fuzz(func(t *testing.T, conf, answer []byte) {
		builder, err := Read[attach.SpecBuilder](role, conf)
		if err != nil {
			return
		}
		in, err := g.input(map[string]string{})
		if err != nil {
			t.Fatal(err)
		}
		if len(answer) > 0 {
			in.IPAM, err = result.Decode("1.1.0", json.RawMessage(answer))
			if err != nil {
				return
			}
		}
		w, err := builder.Build(in)
		if err != nil {
			return
		}
		if len(w.Spec.Objects) == 0 || w.Result == nil {
			t.Fatalf("%s: the spec has no objects: %+v", conf, w)
		}
		in.Prev = w.Result
		if _, err := builder.Build(in); err != nil {
			t.Errorf("%s: CHECK of the role's own result: %v", conf, err)
		}
	})
}
