package view

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/look"
	"github.com/cnibox/cnibox/netops/netopstest"
)

func TestMain(m *testing.M) { netopstest.Main(m) }

// TestOnce: a fact, or the failure to read it, is the same until Forget. Another question is another fact.
func TestOnce(t *testing.T) {
	n := netops.New(netops.Options{})
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	v := NewHost(t.Context(), n)
	const path, key = "/proc/sys/net/ipv4/ip_forward", "net/ipv4/ip_forward"
	set := func(value string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(value), 0); err != nil {
			t.Fatal(err)
		}
	}
	is := func(want string) {
		t.Helper()
		if have, err := v.Sysctl(key); have != want || err != nil {
			t.Errorf("%s is %q, %v, want %q", key, have, err, want)
		}
	}
	set("0")
	is("0")
	set("1")
	is("0")
	v.Forget()
	is("1")
	if have, err := v.Sysctl("net/ipv4/conf/nowhere/forwarding"); have != "" || err != nil {
		t.Errorf("a missing setting is %q, %v", have, err)
	}
	to := func(a string) netops.Packet { return netops.Packet{To: netip.MustParseAddr(a)} }
	if _, err := v.Way(to("192.0.2.1")); !errors.Is(err, netops.ErrNotExist) {
		t.Errorf("a route in an empty namespace: %v", err)
	}
	if way, err := v.Way(to("127.0.0.1")); err != nil || !way.Local {
		t.Errorf("%+v, %v", way, err)
	}
	if out, err := exec.Command("sh", "-c", "ip link add view0 type bridge && ip addr add 192.0.2.2/24 dev view0 && ip link set view0 up").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	_, err := v.Way(to("192.0.2.1"))
	if _, linkErr := v.Link("view0"); !errors.Is(err, netops.ErrNotExist) || linkErr != nil {
		t.Errorf("asked again: %v, and a first question: %v", err, linkErr)
	}
	v.Forget()
	if way, err := v.Way(to("192.0.2.1")); err != nil || way.Link != "view0" {
		t.Errorf("%+v, %v", way, err)
	}
}

// TestRecorded: a view that knows only the records of another one has its answers, also those that are errors.
func TestRecorded(t *testing.T) {
	n := netops.New(netops.Options{})
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	if out, err := exec.Command("sh", "-c", `ip link add record0 type bridge && ip addr add 198.51.100.1/24 dev record0 && ip link set record0 up
ip rule add to 203.0.113.0/24 prohibit priority 7
nft 'table inet x { chain f { type filter hook forward priority 0; ip daddr 192.0.2.7 drop; }; }'`).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	type known struct {
		links    []netops.LinkInfo
		routes   []netops.Route
		verdicts []look.Verdict
		fix, by  string
		isAbsent bool
	}
	ask := func(v *Host) (k known) {
		var errs [5]error
		k.links, errs[0] = v.Links()
		k.routes, errs[1] = v.Routes()
		k.verdicts, errs[2] = v.Verdicts(look.Packet{In: "record0", Out: "eth0", From: netip.MustParseAddr("198.51.100.2"), To: netip.MustParseAddr("192.0.2.7")})
		_, err := v.Way(netops.Packet{To: netip.MustParseAddr("203.0.113.1")})
		refusal := &netops.RouteRefusal{}
		if errors.As(err, &refusal) {
			k.by = refusal.By
		}
		_, err = v.Neighbour("nowhere", netip.MustParseAddr("192.0.2.1"))
		k.isAbsent = errors.Is(err, netops.ErrNotExist)
		if err := errors.Join(errs[:]...); err != nil {
			t.Fatal(err)
		}
		if drops := k.verdicts[0].Drops; len(drops) == 1 {
			k.fix = drops[0].Exception("ip saddr 198.51.100.2", "")
		}
		return k
	}
	live := NewHost(t.Context(), n)
	want := ask(live)
	if !want.isAbsent || want.by != "ip rule 7 (prohibit)" || !strings.HasPrefix(want.fix, "nft insert rule inet x f handle ") {
		t.Fatalf("%+v", want)
	}
	records, err := live.Records()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(records)
	if err != nil {
		t.Fatal(err)
	}
	var read map[string]Record
	if err := json.Unmarshal(raw, &read); err != nil {
		t.Fatal(err)
	}
	played := Recorded(read)
	if have := ask(played); !reflect.DeepEqual(have, want) {
		t.Errorf("%+v, want %+v\n%s", have, want, raw)
	}
	if _, err := played.Sysctl("net/ipv4/ip_forward"); err == nil || !strings.Contains(err.Error(), "sysctl: net/ipv4/ip_forward: not recorded") {
		t.Errorf("a question that was not asked: %v", err)
	}
	again, err := played.Records()
	delete(again, "sysctl: net/ipv4/ip_forward")
	if err != nil || !reflect.DeepEqual(again, read) {
		t.Errorf("recorded again: %v, %v", again, err)
	}
}

// TestOpenAbsent: a namespace that cannot be opened is an error, and is not closed.
func TestOpenAbsent(t *testing.T) {
	n := netops.New(netops.Options{})
	defer n.Close() //nolint:errcheck // it only reads
	h := NewHost(t.Context(), n)
	if _, err := h.Open("web", "/nonexistent"); !errors.Is(err, netops.ErrNoNetns) {
		t.Error(err)
	}
	h.Close()
}
