package netops

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/nstest"
	"github.com/cnibox/cnibox/netops/internal/ruleset"
)

// freshNFT returns a client in a new network namespace.
func freshNFT(t *testing.T, restored ...*nft.Element) *nft.Client {
	t.Helper()
	nstest.Fresh(t)
	return openNFT(t, restored...)
}

func openNFT(t *testing.T, restored ...*nft.Element) *nft.Client {
	t.Helper()
	c := nft.New(ruleset.Schema, func(context.Context) ([]*nft.Element, error) { return restored, nil })
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func masq(label string, key ...string) *nft.Element {
	return &nft.Element{Shared: true, Set: "masq4", Key: key, Label: label}
}

func pair(label, link, mac string) *nft.Element {
	return &nft.Element{Set: "macguard_pairs", Key: []string{link, mac}, Label: label}
}

func mustAdd(t *testing.T, c *nft.Client, els ...*nft.Element) {
	t.Helper()
	if err := c.Add(t.Context(), els); err != nil {
		t.Fatal(err)
	}
}

func mustDel(t *testing.T, c *nft.Client, els ...*nft.Element) {
	t.Helper()
	if err := c.Del(t.Context(), els); err != nil {
		t.Fatal(err)
	}
}

// keysOf maps each element of a set, as its key and value fields separated by
// spaces, to its label.
func keysOf(t *testing.T, c *nft.Client, set string) map[string]string {
	t.Helper()
	els, err := c.List(t.Context(), set)
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]string{}
	for _, e := range els {
		keys[strings.Join(append(e.Key, e.Value...), " ")] = e.Label
	}
	return keys
}

func wantKeys(t *testing.T, c *nft.Client, set string, want map[string]string) {
	t.Helper()
	if diff := cmp.Diff(want, keysOf(t, c, set)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", set, diff)
	}
}

const wantRuleset = `table inet cnibox {
	set masq4 {
		type ifname . ipv4_addr
		flags interval
		elements = { "cni0" . 10.1.0.0/16 comment "net one" }
	}

	set masq6 {
		type ifname . ipv6_addr
		flags interval
		elements = { "cni0" . fd00::/64 comment "net one" }
	}

	chain postrouting {
		type nat hook postrouting priority srcnat; policy accept;
		ip daddr 224.0.0.0/4 return
		iifname . ip daddr @masq4 return
		iifname . ip saddr @masq4 masquerade
		ip6 daddr ff00::/8 return
		iifname . ip6 daddr @masq6 return
		iifname . ip6 saddr @masq6 masquerade
	}
}
table bridge cnibox {
	set macguard_ports {
		type ifname
		elements = { "veth1" comment "cnibox:01" }
	}

	set macguard_pairs {
		type ifname . ether_addr
		elements = { "veth1" . 02:00:00:00:00:01 comment "cnibox:01" }
	}

	chain prerouting {
		type filter hook prerouting priority dstnat; policy accept;
		iifname . ether saddr @macguard_pairs return
		iifname @macguard_ports drop
	}
}
`

func TestNFTSchemaAsNftShowsIt(t *testing.T) {
	c := freshNFT(t)
	mustAdd(t, c,
		masq("net one", "cni0", "10.1.0.0/16"),
		pair("cnibox:01", "veth1", "02:00:00:00:00:01"),
		&nft.Element{Shared: true, Set: "masq6", Key: []string{"cni0", "fd00::/64"}, Label: "net one"},
		&nft.Element{Set: "macguard_ports", Key: []string{"veth1"}, Label: "cnibox:01"},
	)
	if diff := cmp.Diff(wantRuleset, nstest.Run(t, "nft", "list", "ruleset")); diff != "" {
		t.Errorf("nft list ruleset (-want +got):\n%s", diff)
	}
}

func TestNFTTablesAreMadeOnDemand(t *testing.T) {
	c := freshNFT(t)
	e := masq("one", "cni0", "10.1.0.0/16")
	if have, found, err := c.Get(t.Context(), e); have != nil || found || err != nil {
		t.Errorf("get without a table: %v, %v, %v", have, found, err)
	}
	wantKeys(t, c, "masq4", map[string]string{})
	mustDel(t, c, e, pair("", "veth1", "02:00:00:00:00:01"))
	if err := c.RemoveBase(t.Context()); err != nil {
		t.Error(err)
	}
	if got := nstest.Run(t, "nft", "list", "ruleset"); got != "" {
		t.Errorf("reading and deleting made:\n%s", got)
	}
	mustAdd(t, c, e)
	if diff := cmp.Diff("table inet cnibox\n", nstest.Run(t, "nft", "list", "tables")); diff != "" {
		t.Errorf("tables after one masquerade entry (-want +got):\n%s", diff)
	}
}

func TestNFTGet(t *testing.T) {
	c := freshNFT(t)
	mustAdd(t, c, masq("one", "cni0", "10.1.0.0/16"), pair("p", "veth1", "02:00:00:00:00:01"))
	for _, tc := range []struct {
		name  string
		ask   *nft.Element
		found []string
		label string
	}{
		{"same", masq("", "cni0", "10.1.0.0/16"), []string{"cni0", "10.1.0.0/16"}, "one"},
		{"covered", masq("", "cni0", "10.1.7.0/24"), []string{"cni0", "10.1.0.0/16"}, "one"},
		{"covering", masq("", "cni0", "10.0.0.0/8"), nil, ""},
		{"covering, same end", masq("", "cni0", "10.0.0.0/15"), nil, ""},
		{"other link", masq("", "cni1", "10.1.0.0/16"), nil, ""},
		{"exact", pair("", "veth1", "02:00:00:00:00:01"), []string{"veth1", "02:00:00:00:00:01"}, "p"},
		{"absent", pair("", "veth1", "02:00:00:00:00:02"), nil, ""},
		{"absent set", &nft.Element{Set: "masq6", Key: []string{"cni0", "fd00::/64"}}, nil, ""},
	} {
		have, found, err := c.Get(t.Context(), tc.ask)
		if err != nil || found != (tc.found != nil) {
			t.Errorf("%s: found %v, error %v", tc.name, found, err)
			continue
		}
		if found && (!cmp.Equal(have.Key, tc.found) || have.Label != tc.label || have.Shared != tc.ask.Shared) {
			t.Errorf("%s: have %+v", tc.name, have)
		}
	}
}

func TestNFTAddToWhatExists(t *testing.T) {
	c := freshNFT(t)
	mustAdd(t, c, masq("one", "cni0", "10.1.0.0/16"), pair("cnibox:a", "veth1", "02:00:00:00:00:01"))
	t.Run("shared", func(t *testing.T) {
		mustAdd(t, c, masq("two", "cni0", "10.1.0.0/16"))
		wantKeys(t, c, "masq4", map[string]string{"cni0 10.1.0.0/16": "one"})
	})
	t.Run("shared and covered", func(t *testing.T) {
		mustAdd(t, c, masq("two", "cni0", "10.1.2.0/24"), masq("two", "cni1", "10.1.2.0/24"))
		wantKeys(t, c, "masq4", map[string]string{"cni0 10.1.0.0/16": "one", "cni1 10.1.2.0/24": "two"})
	})
	t.Run("own pending", func(t *testing.T) {
		mustAdd(t, c, pair("cnibox:a", "veth1", "02:00:00:00:00:01"), pair("cnibox:a", "veth1", "02:00:00:00:00:02"))
		wantKeys(t, c, "macguard_pairs", map[string]string{
			"veth1 02:00:00:00:00:01": "cnibox:a", "veth1 02:00:00:00:00:02": "cnibox:a",
		})
	})
	t.Run("held by another", func(t *testing.T) {
		err := c.Add(t.Context(), []*nft.Element{
			pair("cnibox:b", "veth3", "02:00:00:00:00:03"), pair("cnibox:b", "veth1", "02:00:00:00:00:01"),
		})
		if !errors.Is(err, ErrExists) {
			t.Fatalf("error %v, want ErrExists", err)
		}
		for _, part := range []string{"bridge cnibox macguard_pairs", "veth1 . 02:00:00:00:00:01", `"cnibox:a"`} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("error %q does not name %s", err, part)
			}
		}
		if _, made := keysOf(t, c, "macguard_pairs")["veth3 02:00:00:00:00:03"]; made {
			t.Error("the other element of a refused call was made")
		}
	})
	t.Run("exclusive and covered", func(t *testing.T) {
		e := masq("two", "cni0", "10.1.2.0/24")
		e.Shared = false
		if err := c.Add(t.Context(), []*nft.Element{e}); !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), `10.1.0.0/16 } is held by "one"`) {
			t.Errorf("error %v", err)
		}
	})
	t.Run("asked for twice", func(t *testing.T) {
		mustAdd(t, c, masq("one", "cni5", "10.5.0.0/16"), masq("two", "cni5", "10.5.0.0/16"))
		err := c.Add(t.Context(), []*nft.Element{pair("cnibox:a", "veth9", "02:00:00:00:00:09"), pair("cnibox:b", "veth9", "02:00:00:00:00:09")})
		if !errors.Is(err, ErrExists) {
			t.Errorf("error %v, want ErrExists", err)
		}
	})
}

// TestNFTWiderPrefixTakesOver replaces prefixes by a wider one that has the same
// first or last address. The kernel rejects such overlapping prefixes.
func TestNFTWiderPrefixTakesOver(t *testing.T) {
	c := freshNFT(t)
	mustAdd(t, c, masq("a", "cni0", "10.1.0.0/24"), masq("b", "cni0", "10.1.255.0/24"), masq("c", "cni0", "10.1.7.0/24"))
	exclusive := masq("x", "cni0", "10.1.0.0/16")
	exclusive.Shared = false
	if err := c.Add(t.Context(), []*nft.Element{exclusive}); !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), `held by "a"`) {
		t.Errorf("exclusive: error %v, want ErrExists with the holder", err)
	}
	mustAdd(t, c, masq("wide", "cni0", "10.1.0.0/16"), masq("d", "cni1", "10.1.0.0/24"))
	wantKeys(t, c, "masq4", map[string]string{"cni0 10.1.0.0/16": "wide", "cni0 10.1.7.0/24": "c", "cni1 10.1.0.0/24": "d"})
	if have, found, err := c.Get(t.Context(), masq("", "cni0", "10.1.0.0/24")); !found || err != nil || have.Label != "wide" {
		t.Errorf("the narrower one: %+v, %v, %v", have, found, err)
	}
}

func TestNFTDeleteIsExact(t *testing.T) {
	c := freshNFT(t)
	all := []*nft.Element{
		masq("24", "cni0", "10.1.5.0/24"), masq("16", "cni0", "10.1.0.0/16"),
		masq("8", "cni0", "10.0.0.0/8"), masq("other", "cni1", "10.1.0.0/16"),
	}
	for _, e := range all { // separately: the kernel accepts a wider prefix only after the narrower one
		mustAdd(t, c, e)
	}
	mustDel(t, c, masq("", "cni0", "10.1.2.0/24"), masq("", "cni0", "10.1.5.0/25"), masq("", "cni0", "0.0.0.0/0"))
	wantKeys(t, c, "masq4", map[string]string{
		"cni0 10.1.5.0/24": "24", "cni0 10.1.0.0/16": "16", "cni0 10.0.0.0/8": "8", "cni1 10.1.0.0/16": "other",
	})
	mustDel(t, c, all[0])
	mustAdd(t, c, masq("", "cni2", "0.0.0.0/0"))
	wantKeys(t, c, "masq4", map[string]string{
		"cni0 10.1.0.0/16": "16", "cni0 10.0.0.0/8": "8", "cni1 10.1.0.0/16": "other", "cni2 0.0.0.0/0": "",
	})
	mustDel(t, c, all[1])
	wantKeys(t, c, "masq4", map[string]string{
		"cni0 10.0.0.0/8": "8", "cni1 10.1.0.0/16": "other", "cni2 0.0.0.0/0": "",
	})
	mustDel(t, c, all...)
	wantKeys(t, c, "masq4", map[string]string{"cni2 0.0.0.0/0": ""})
}

func TestNFTDeletePresentBesideAbsent(t *testing.T) {
	c := freshNFT(t)
	mustAdd(t, c, pair("a", "veth1", "02:00:00:00:00:01"), pair("a", "veth2", "02:00:00:00:00:02"), pair("a", "veth3", "02:00:00:00:00:03"))
	mustDel(t, c, pair("", "veth1", "02:00:00:00:00:01"), pair("", "veth9", "02:00:00:00:00:09"), pair("", "veth3", "02:00:00:00:00:03"),
		&nft.Element{Set: "macguard_ports", Key: []string{"veth1"}})
	wantKeys(t, c, "macguard_pairs", map[string]string{"veth2 02:00:00:00:00:02": "a"})
}

func TestNFTManyElements(t *testing.T) {
	const n = 10_000
	c := freshNFT(t)
	els := make([]*nft.Element, n)
	want := map[string]string{}
	for i := range els {
		mac := fmt.Sprintf("02:00:00:00:%02x:%02x", i>>8, i&0xff)
		els[i] = pair(strings.Repeat("x", nft.MaxLabel), "veth-long-name1", mac)
		want["veth-long-name1 "+mac] = els[i].Label
	}
	mustAdd(t, c, els...)
	wantKeys(t, c, "macguard_pairs", want)
	mustDel(t, c, append([]*nft.Element{pair("", "veth1", "02:00:00:00:00:01")}, els[:300]...)...)
	if got := len(keysOf(t, c, "macguard_pairs")); got != n-300 {
		t.Errorf("%d elements after deleting 300 of %d", got, n)
	}
}

// TestNFTGetReadsOneElement: a Get does not read the other elements of the set.
func TestNFTGetReadsOneElement(t *testing.T) {
	c := freshNFT(t)
	var all []*nft.Element
	for i := range 500 {
		all = append(all, pair("l", "eth0", fmt.Sprintf("02:00:00:00:%02x:%02x", i/256, i%256)))
	}
	mustAdd(t, c, all...)
	allocations := testing.AllocsPerRun(10, func() {
		if have, found, err := c.Get(t.Context(), all[7]); err != nil || !found || have.Label != "l" {
			t.Fatal(have, found, err)
		}
	})
	if allocations > 200 {
		t.Errorf("%.0f allocations", allocations)
	}
}

func TestNFTRefusesBadElements(t *testing.T) {
	c := freshNFT(t)
	for _, e := range []*nft.Element{
		{Set: "no-such-set", Key: []string{"cni0"}},
		masq("", "cni0"),
		masq("", "cni0", "10.0.0.0/16", "more"),
		masq("", "cni0", "10.0.0.0"),
		masq("", "cni0", "10.0.0.0/33"),
		masq("", "cni0", "fd00::/64"),
		masq("", "sixteen-letters!", "10.0.0.0/16"),
		masq("", "", "10.0.0.0/16"),
		masq("", "a/b", "10.0.0.0/16"),
		masq("", "a\x00b", "10.0.0.0/16"),
		pair("", "veth1", "02:00:00:00:00:00:00:01"),
		pair("", "veth1", "nonsense"),
		{Set: "masq4", Key: []string{"cni0", "10.0.0.0/16"}, Value: []string{"accept"}},
	} {
		if err := c.Add(t.Context(), []*nft.Element{e}); !errors.Is(err, ErrInvalid) {
			t.Errorf("add %+v: error %v, want ErrInvalid", e, err)
		}
		if _, _, err := c.Get(t.Context(), e); !errors.Is(err, ErrInvalid) {
			t.Errorf("get %+v: error %v, want ErrInvalid", e, err)
		}
		if err := c.Del(t.Context(), []*nft.Element{e}); !errors.Is(err, ErrInvalid) {
			t.Errorf("del %+v: error %v, want ErrInvalid", e, err)
		}
	}
	if _, err := c.List(t.Context(), "no-such-set"); !errors.Is(err, ErrInvalid) {
		t.Errorf("list: error %v, want ErrInvalid", err)
	}
	if got := nstest.Run(t, "nft", "list", "ruleset"); got != "" {
		t.Errorf("refused elements made:\n%s", got)
	}
}

func TestNFTWithoutPermission(t *testing.T) {
	nstest.Fresh(t)
	// Capabilities belong to the thread, and the thread ends with the test.
	none := make([]unix.CapUserData, 2)
	if err := unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0]); err != nil {
		t.Fatal(err)
	}
	c := openNFT(t)
	err := c.Add(t.Context(), []*nft.Element{masq("one", "cni0", "10.1.0.0/16")})
	if !errors.Is(err, ErrPermission) || !errors.Is(err, unix.EPERM) {
		t.Errorf("error %v, want ErrPermission", err)
	}
}

func TestNFTHonoursContext(t *testing.T) {
	c := freshNFT(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Add(ctx, []*nft.Element{masq("one", "cni0", "10.1.0.0/16")}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
	if got := nstest.Run(t, "nft", "list", "ruleset"); got != "" {
		t.Errorf("a cancelled call made:\n%s", got)
	}
}

// TestNFTIgnoresUnreadReplies checks that unread replies to one call are not taken
// as replies to the next.
func TestNFTIgnoresUnreadReplies(t *testing.T) {
	c := freshNFT(t)
	mustAdd(t, c, pair("cnibox:a", "veth1", "02:00:00:00:00:01"))
	abandon := func() {
		t.Helper()
		m := nft.Request(unix.NFT_MSG_GETGEN, unix.NLM_F_ACK, unix.AF_UNSPEC)
		if err := connOf(t, c).Send(connOf(t, c).Append(nil, m)); err != nil {
			t.Fatal(err)
		}
	}
	abandon()
	if _, found, err := c.Get(t.Context(), pair("", "veth1", "02:00:00:00:00:01")); !found || err != nil {
		t.Errorf("get: found %v, error %v", found, err)
	}
	abandon()
	if err := c.Add(t.Context(), []*nft.Element{pair("cnibox:b", "veth1", "02:00:00:00:00:01")}); !errors.Is(err, ErrExists) {
		t.Errorf("add: error %v, want ErrExists", err)
	}
}

func TestNFTHostileLabelInKernel(t *testing.T) {
	c := freshNFT(t)
	label := "a\x00\"; }\n\x1b[2J\xff" + strings.Repeat("ü", 200)
	mustAdd(t, c, pair(label, "veth1", "02:00:00:00:00:01"))
	mustAdd(t, c, pair(label, "veth1", "02:00:00:00:00:01")) // a repeated add must succeed
	want := nft.CleanLabel(label)
	wantKeys(t, c, "macguard_pairs", map[string]string{"veth1 02:00:00:00:00:01": want})
	if got := nstest.Run(t, "nft", "list", "set", "bridge", "cnibox", "macguard_pairs"); !strings.Contains(got, `comment "`+want+`"`) {
		t.Errorf("nft shows %q", got)
	}
}

func TestNFTElementsOfOtherPrograms(t *testing.T) {
	c := freshNFT(t)
	mustAdd(t, c, masq("one", "cni0", "10.1.0.0/16"))
	nstest.Run(t, "nft", "add", "element", "inet", "cnibox", "masq4", `{ "br-*" . 10.0.0.1-10.0.0.6 comment "by hand", "x" . 10.9.0.0/24 }`)
	wantKeys(t, c, "masq4", map[string]string{
		"cni0 10.1.0.0/16": "one", "br-* 10.0.0.1-10.0.0.6": "by hand", "x 10.9.0.0/24": "",
	})
}

// connOf returns the socket of a client.
func connOf(t *testing.T, c *nft.Client) *nlconn.Conn {
	t.Helper()
	conn, err := c.Conn()
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// inetTable returns the table of most features.
func inetTable() nft.Table { return nft.Table{Family: unix.NFPROTO_INET, Name: "cnibox"} }
