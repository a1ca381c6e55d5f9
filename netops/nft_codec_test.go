package netops

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

func TestNFTFieldTexts(t *testing.T) {
	for _, tc := range []struct {
		field     field
		text      string
		low, high string
		back      string // "" means the same text
	}{
		{ifName, "cni0", "cni0\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", "", ""},
		{ifName, "fifteen-letters", "fifteen-letters\x00", "", ""},
		{ifPattern, "cni0", "cni0\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", "", ""},
		{ifPattern, "veth*", "veth" + strings.Repeat("\x00", 12), "veth" + strings.Repeat("\xff", 12), ""},
		{ifPattern, "fifteen-letters*", "fifteen-letters\x00", "fifteen-letters\xff", ""},
		{ip4Addr, "10.0.0.1", "\x0a\x00\x00\x01", "", ""},
		{ip6Addr, "fd00::1", "\xfd\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01", "", ""},
		{ip4Prefix, "10.22.0.0/16", "\x0a\x16\x00\x00", "\x0a\x16\xff\xff", ""},
		{ip4Prefix, "10.22.3.4/15", "\x0a\x16\x00\x00", "\x0a\x17\xff\xff", "10.22.0.0/15"},
		{ip4Prefix, "10.22.0.1/32", "\x0a\x16\x00\x01", "\x0a\x16\x00\x01", ""},
		{ip4Prefix, "0.0.0.0/0", "\x00\x00\x00\x00", "\xff\xff\xff\xff", ""},
		{ip6Prefix, "fd00::/63", "\xfd" + strings.Repeat("\x00", 15), "\xfd\x00\x00\x00\x00\x00\x00\x01" + strings.Repeat("\xff", 8), ""},
		{etherAddr, "02:00:00:00:00:0A", "\x02\x00\x00\x00\x00\x0a", "", "02:00:00:00:00:0a"},
		{inetProto, "tcp", "\x06", "", ""},
		{inetProto, "udp", "\x11", "", ""},
		{inetProto, "sctp", "\x84", "", ""},
		{inetProto, "icmp", "\x01", "", ""},
		{inetProto, "47", "\x2f", "", ""},
		{inetService, "8080", "\x1f\x90", "", ""},
		{packetMark, "8192", "\x00\x20\x00\x00", "", "0x2000"},
		{verdict, "accept", "\x00\x00\x00\x01", "", ""},
		{verdict, "drop", "\x00\x00\x00\x00", "", ""},
		{verdict, "return", "\xff\xff\xff\xfb", "", ""},
		{verdict, "jump net-1", "\xff\xff\xff\xfdnet-1", "", ""},
		{verdict, "goto net-1", "\xff\xff\xff\xfcnet-1", "", ""},
	} {
		low, high, err := tc.field.encode(tc.text)
		if tc.high == "" {
			tc.high = tc.low
		}
		if tc.back == "" {
			tc.back = tc.text
		}
		if err != nil || string(low) != tc.low || string(high) != tc.high {
			t.Errorf("encode %q: %q, %q, %v", tc.text, low, high, err)
			continue
		}
		if got := tc.field.decode(low, high); got != tc.back {
			t.Errorf("decode of %q: %q, want %q", tc.text, got, tc.back)
		}
	}
}

func TestNFTBadFieldTexts(t *testing.T) {
	for _, tc := range []struct {
		field field
		text  string
	}{
		{ifName, `a"b`},
		{ifName, "a\xffb"},
		{ifName, "a b"},
		{ifPattern, "*"},
		{ifPattern, "a*b"},
		{ifPattern, "veth**"},
		{ifPattern, "sixteen-letters-*"},
		{ip4Addr, "fd00::1"},
		{ip4Addr, "10.0.0.1/32"},
		{ip6Addr, "fe80::1%eth0"},
		{ip6Addr, "10.0.0.1"},
		{ip4Prefix, "10.0.0.1"},
		{ip6Prefix, "10.0.0.0/8"},
		{inetProto, "256"},
		{inetProto, ""},
		{inetService, "65536"},
		{inetService, "http"},
		{packetMark, "0x100000000"},
		{packetMark, "-1"},
		{verdict, "jump"},
		{verdict, "accept chain"},
		{verdict, "jump two words"},
		{verdict, "jump " + strings.Repeat("x", 300)},
		{verdict, "masquerade"},
	} {
		if low, _, err := tc.field.encode(tc.text); err == nil {
			t.Errorf("field %d takes %q as %q", tc.field, tc.text, low)
		}
	}
}

func TestNFTRangeThatIsNoPrefix(t *testing.T) {
	for _, tc := range []struct{ first, last, want string }{
		{"\x0a\x00\x00\x01", "\x0a\x00\x00\x03", "10.0.0.1-10.0.0.3"},
		{"\x0a\x00\x00\x00", "\x0a\x00\x00\x02", "10.0.0.0-10.0.0.2"},
		{"\x0a\x00\x00\x00", "\x0a\x00\x00\x03", "10.0.0.0/30"},
	} {
		if got := ip4Prefix.decode([]byte(tc.first), []byte(tc.last)); got != tc.want {
			t.Errorf("%q to %q: %q, want %q", tc.first, tc.last, got, tc.want)
		}
	}
}

func TestNFTLabels(t *testing.T) {
	long := strings.Repeat("ä", maxLabel)
	for _, tc := range []struct{ name, label, want string }{
		{"plain", "cnibox:0123 pod default/web", "cnibox:0123 pod default/web"},
		{"empty", "", ""},
		{"UTF-8", "größe", "größe"},
		{"cut between characters", "x" + long, "x" + strings.Repeat("ä", 59)},
		{"as long as may be", strings.Repeat("a", maxLabel), strings.Repeat("a", maxLabel)},
		{"NUL and newline", "a\x00b\nc", "a?b?c"},
		{"quotes", `a"; flush ruleset; "\`, `a?; flush ruleset; ??`},
		{"terminal", "\x1b[31m", "?[31m"},
		{"broken UTF-8", "a\xffb", "a?b"},
	} {
		got := cleanLabel(tc.label)
		if got != tc.want || cleanLabel(got) != got {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
		if back := labelOf(labelUserData(got)); back != got {
			t.Errorf("%s: read back %q, want %q", tc.name, back, got)
		}
	}
}

func TestNFTHostileLabelInKernel(t *testing.T) {
	c := freshNFT(t)
	label := "a\x00\"; }\n\x1b[2J\xff" + strings.Repeat("ü", 200)
	mustAdd(t, c, pair(label, "veth1", "02:00:00:00:00:01"))
	mustAdd(t, c, pair(label, "veth1", "02:00:00:00:00:01")) // recognised as our own
	want := cleanLabel(label)
	wantKeys(t, c, "macguard_pairs", map[string]string{"veth1 02:00:00:00:00:01": want})
	if got := run(t, "nft", "list", "set", "bridge", "cnibox", "macguard_pairs"); !strings.Contains(got, `comment "`+want+`"`) {
		t.Errorf("nft shows %q", got)
	}
}

func TestNFTForeignElements(t *testing.T) {
	c := freshNFT(t)
	mustAdd(t, c, masq("one", "cni0", "10.1.0.0/16"))
	run(t, "nft", "add", "element", "inet", "cnibox", "masq4", `{ "br-*" . 10.0.0.1-10.0.0.6 comment "by hand", "x" . 10.9.0.0/24 }`)
	wantKeys(t, c, "masq4", map[string]string{
		"cni0 10.1.0.0/16": "one", "br-* 10.0.0.1-10.0.0.6": "by hand", "x 10.9.0.0/24": "",
	})
}

// FuzzNFTDecode feeds what a kernel, or another program through it, could send.
func FuzzNFTDecode(f *testing.F) {
	schema := append(baseSchema(), mapsFeature())
	for _, e := range []*Element{
		masq("label", "cni0", "10.0.0.0/8"),
		masq("label", "veth*", "10.0.0.0/8"),
		pair("label", "veth1", "02:00:00:00:00:01"),
		{Set: "test_ports", Key: []string{"10.0.0.1", "tcp", "80"}, Value: []string{"10.0.0.2", "8080"}, Label: "label"},
		{Set: "test_policy", Key: []string{"10.0.0.1"}, Value: []string{"jump test_net"}},
	} {
		n, err := entryOf(schema, e)
		if err != nil {
			f.Fatal(err)
		}
		m, err := elementMessage(unix.NFT_MSG_NEWSETELEM, 0, []*entry{n})
		if err != nil {
			f.Fatal(err)
		}
		back, err := decodeEntries(n.set, m.Body[4:])
		if err != nil || len(back) != 1 {
			f.Fatalf("decode %s: %v, %v", n, back, err)
		}
		if diff := cmp.Diff(e, back[0].element(), cmp.FilterPath(func(p cmp.Path) bool { return p.String() == "Shared" }, cmp.Ignore())); diff != "" {
			f.Errorf("round trip (-want +got):\n%s", diff)
		}
		f.Add(m.Body[4:])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, set := range schema.sets() {
			entries, _ := decodeEntries(set, b)
			for _, n := range entries {
				checkText(t, n.String())
				checkText(t, n.label)
				n.covers(n)
			}
		}
		countElements(b)
	})
}

func FuzzNFTUserData(f *testing.F) {
	f.Add(labelUserData("cnibox:01 pod"))
	f.Add([]byte{1, 2, 3, 4, 0, 3, 'a', 'b', 0})
	f.Add([]byte{0, 255, 'a'})
	f.Fuzz(func(t *testing.T, b []byte) {
		checkText(t, labelOf(b))
		label := cleanLabel(string(b))
		checkText(t, label)
		if len(label) > maxLabel || labelOf(labelUserData(label)) != label {
			t.Errorf("label %q of %q", label, b)
		}
	})
}

func FuzzNFTElement(f *testing.F) {
	f.Add("masq4", "cni0", "10.0.0.0/8")
	f.Add("masq4", "veth*", "10.0.0.0/8")
	f.Add("macguard_pairs", "veth1", "02:00:00:00:00:01")
	f.Add("test_policy", "10.0.0.1", "goto chain")
	schema := append(baseSchema(), mapsFeature())
	f.Fuzz(func(t *testing.T, set, first, second string) {
		for _, e := range []*Element{
			{Set: set, Key: []string{first, second}},
			{Set: set, Key: []string{first}, Value: []string{second}},
		} {
			n, err := entryOf(schema, e)
			if err != nil {
				continue
			}
			again, err := entryOf(schema, n.element())
			if err != nil || !again.sameKey(n) || string(again.data) != string(n.data) {
				t.Errorf("%+v reads back as %+v: %v", e, n.element(), err)
			}
		}
	})
}

// checkText fails for what must not reach a terminal.
func checkText(t *testing.T, s string) {
	t.Helper()
	if !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == '"' || r == 0x7f }) {
		t.Errorf("unprintable text %q", s)
	}
}

// One attribute holds all elements of a message, and its length is 16 bits.
func TestNFTMessagesStayWithinAttributes(t *testing.T) {
	feature := mapsFeature()
	widest := feature.sets[0]
	var entries []*entry
	for i := range 1000 {
		entries = append(entries, &entry{
			set: widest, key: make([]byte, widest.keySize()), end: make([]byte, 100), data: make([]byte, 100), label: strings.Repeat("x", maxLabel-i%2),
		})
	}
	msgs, err := elementMessages(unix.NFT_MSG_NEWSETELEM, 0, entries)
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for _, m := range msgs {
		if err := eachAttr(m.Body[4:], func(ad *netlink.AttributeDecoder) error { return nil }); err != nil {
			t.Errorf("message of %d bytes: %v", len(m.Body[4:]), err)
		}
		if n := countElements(m.Body[4:]); n > maxPerMessage || len(m.Body[4:]) >= 1<<16 {
			t.Errorf("message of %d elements and %d bytes", n, len(m.Body[4:]))
		} else {
			total += n
		}
	}
	if total != len(entries) {
		t.Errorf("%d elements in the messages, want %d", total, len(entries))
	}
}
