package ovs_test

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/test/bus"
)

// peer makes a call to the real ovs-cni.
func (r *rig) peer(c rolestest.Call) string {
	r.t.Helper()
	file, err := filepath.Abs("../../../bin/peers/ovs-cni")
	must(r.t, err)
	cmd := r.Cmd(c)
	cmd.Path = file
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		r.t.Fatalf("%s ovs-cni: %v: run 'make bin/peers/ovs-cni' if it is absent: %s%s", c.Verb, err, out.String(), errs.String())
	}
	return out.String()
}

// TestBesideReference: containers of ovs-cni and of cnibox are on one bridge. Their rows differ in the owner only, neither
// removes the other's, and cnibox detaches those of ovs-cni.
func TestBesideReference(t *testing.T) {
	bus.Cover(t, "/var/lib/cni")
	r := newRig(t)
	before := r.State(nil)
	keys := `,"vlan":100,"ofport_request":5,` + static("10.1.0.8")
	peer := r.call("ADD", "theirs", keys)
	peer.Conf = rolestest.WithKeys(t, peer.Conf, map[string]any{"cniVersion": "1.0.0"}) // the newest that it knows
	peer.Args = "OvnPort=lsp;K8S_POD_UID=0b1f"
	theirs := r.peer(peer)
	mine := r.call("ADD", "mine", `,"vlan":100,"ofport_request":5,`+static("10.1.0.9"))
	mine.Args = peer.Args
	ours := r.OK(mine).Stdout
	t.Run("traffic", func(t *testing.T) { // whose sockets keep the namespaces
		netopstest.CheckDatagram(t, "from ovs-cni's", r.spaces["theirs"], netopstest.Listen(t, r.spaces["mine"], "10.1.0.9:7000"), "10.1.0.8")
		netopstest.CheckDatagram(t, "to ovs-cni's", r.spaces["mine"], netopstest.Listen(t, r.spaces["theirs"], "10.1.0.8:7000"), "10.1.0.9")
	})

	describe := func(result string, own rolestest.Call) string {
		t.Helper()
		var res roles.Result
		must(t, json.Unmarshal([]byte(result), &res))
		host := res.Interfaces[0].Name
		rows := r.Vsctl(t, "--columns=vlan_mode,tag,trunks,external_ids", "list", "port", host, "--", "--columns=type,ofport_request,external_ids", "list", "interface", host)
		owner := r.Vsctl(t, "get", "port", host, "external_ids:owner")
		res.Interfaces[0].Name, res.Interfaces[0].Mac, res.IPs[0].Address.IP = "HOST", "", nil
		shape, err := json.Marshal(map[string]any{"interfaces": res.Interfaces, "ips": res.IPs})
		must(t, err)
		text := rows + string(shape)
		for _, one := range [][2]string{{owner, "OWNER"}, {own.Netns, "NETNS"}, {"0a:58:0a:01:00:08", "MAC"}, {"0a:58:0a:01:00:09", "MAC"}} {
			text = strings.ReplaceAll(text, one[0], one[1])
		}
		return text
	}
	if a, b := describe(theirs, peer), describe(ours, mine); a != b {
		t.Errorf("ovs-cni:\n%s\ncnibox:\n%s", a, b)
	}

	// Each removes what it finds in error, and not the other's.
	r.spaces["mine"].Remove(t)
	other := r.call("ADD", "other", `,`+static("10.1.0.7"))
	other.Conf = rolestest.WithKeys(t, other.Conf, map[string]any{"cniVersion": "1.0.0"})
	r.peer(other)
	other.Verb = "DEL"
	r.peer(other)
	if ports := r.Vsctl(t, "list-ports", bridge); len(strings.Fields(ports)) != 2 {
		t.Errorf("ports after ovs-cni's calls: %q", ports)
	}
	mine.Verb, mine.Netns = "DEL", ""
	r.OK(mine)
	r.OK(r.collect(keys))
	if ports := r.Vsctl(t, "list-ports", bridge); len(strings.Fields(ports)) != 1 {
		t.Errorf("ports after DEL and GC: %q", ports)
	}

	check := peer
	check.Verb, check.Conf = "CHECK", rolestest.WithKeys(t, peer.Conf, map[string]any{"prevResult": json.RawMessage(theirs)})
	r.OK(check)
	check.Verb = "DEL"
	r.OK(check)
	r.same(before, "after cnibox's DEL of ovs-cni's container")
	if left, err := filepath.Glob("/var/lib/cni/ovs-cni/cache/theirs*"); err != nil || len(left) > 0 {
		t.Errorf("ovs-cni's files stay: %q, %v", left, err)
	}
}
