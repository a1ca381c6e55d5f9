package nft

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

func TestFieldTexts(t *testing.T) {
	for _, tc := range []struct {
		field     Field
		text      string
		low, high string
		back      string // "" means the same text
	}{
		{IfName, "cni0", "cni0\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", "", ""},
		{IfName, "fifteen-letters", "fifteen-letters\x00", "", ""},
		{IfPattern, "cni0", "cni0\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", "", ""},
		{IfPattern, "veth*", "veth" + strings.Repeat("\x00", 12), "veth" + strings.Repeat("\xff", 12), ""},
		{IfPattern, "fifteen-letters*", "fifteen-letters\x00", "fifteen-letters\xff", ""},
		{IP4Addr, "10.0.0.1", "\x0a\x00\x00\x01", "", ""},
		{IP6Addr, "fd00::1", "\xfd\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01", "", ""},
		{IP4Prefix, "10.22.0.0/16", "\x0a\x16\x00\x00", "\x0a\x16\xff\xff", ""},
		{IP4Prefix, "10.22.3.4/15", "\x0a\x16\x00\x00", "\x0a\x17\xff\xff", "10.22.0.0/15"},
		{IP4Prefix, "10.22.0.1/32", "\x0a\x16\x00\x01", "\x0a\x16\x00\x01", ""},
		{IP4Prefix, "0.0.0.0/0", "\x00\x00\x00\x00", "\xff\xff\xff\xff", ""},
		{IP6Prefix, "fd00::/63", "\xfd" + strings.Repeat("\x00", 15), "\xfd\x00\x00\x00\x00\x00\x00\x01" + strings.Repeat("\xff", 8), ""},
		{EtherAddr, "02:00:00:00:00:0A", "\x02\x00\x00\x00\x00\x0a", "", "02:00:00:00:00:0a"},
		{InetProto, "tcp", "\x06", "", ""},
		{InetProto, "udp", "\x11", "", ""},
		{InetProto, "sctp", "\x84", "", ""},
		{InetProto, "icmp", "\x01", "", ""},
		{InetProto, "47", "\x2f", "", ""},
		{InetService, "8080", "\x1f\x90", "", ""},
		{ServiceRange, "8000-8100", "\x1f\x40", "\x1f\xa4", ""},
		{ServiceRange, "8080", "\x1f\x90", "", ""},
		{ServiceRange, "8080-8080", "\x1f\x90", "", "8080"},
		{PacketMark, "8192", "\x00\x20\x00\x00", "", "0x2000"},
		{IfGroup, "0x656e69", "\x69\x6e\x65\x00", "", ""},
		{Verdict, "accept", "\x00\x00\x00\x01", "", ""},
		{Verdict, "drop", "\x00\x00\x00\x00", "", ""},
		{Verdict, "return", "\xff\xff\xff\xfb", "", ""},
		{Verdict, "jump net-1", "\xff\xff\xff\xfdnet-1", "", ""},
		{Verdict, "goto net-1", "\xff\xff\xff\xfcnet-1", "", ""},
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

func TestBadFieldTexts(t *testing.T) {
	for _, tc := range []struct {
		field Field
		text  string
	}{
		{IfName, `a"b`},
		{IfName, "a\xffb"},
		{IfName, "a b"},
		{IfPattern, "*"},
		{IfPattern, "a*b"},
		{IfPattern, "veth**"},
		{IfPattern, "sixteen-letters-*"},
		{IP4Addr, "fd00::1"},
		{IP4Addr, "10.0.0.1/32"},
		{IP6Addr, "fe80::1%eth0"},
		{IP6Addr, "10.0.0.1"},
		{IP4Prefix, "10.0.0.1"},
		{IP6Prefix, "10.0.0.0/8"},
		{InetProto, "256"},
		{InetProto, ""},
		{InetService, "65536"},
		{InetService, "http"},
		{ServiceRange, "8100-8000"},
		{ServiceRange, "8000-"},
		{ServiceRange, "-8000"},
		{ServiceRange, "8000-8001-8002"},
		{PacketMark, "0x100000000"},
		{PacketMark, "-1"},
		{Verdict, "jump"},
		{Verdict, "accept chain"},
		{Verdict, "jump two words"},
		{Verdict, "jump " + strings.Repeat("x", 300)},
		{Verdict, "masquerade"},
	} {
		if low, _, err := tc.field.encode(tc.text); err == nil {
			t.Errorf("field %d takes %q as %q", tc.field, tc.text, low)
		}
	}
}

func TestRangeNotPrefix(t *testing.T) {
	for _, tc := range []struct{ first, last, want string }{
		{"\x0a\x00\x00\x01", "\x0a\x00\x00\x03", "10.0.0.1-10.0.0.3"},
		{"\x0a\x00\x00\x00", "\x0a\x00\x00\x02", "10.0.0.0-10.0.0.2"},
		{"\x0a\x00\x00\x00", "\x0a\x00\x00\x03", "10.0.0.0/30"},
	} {
		if got := IP4Prefix.decode([]byte(tc.first), []byte(tc.last)); got != tc.want {
			t.Errorf("%q to %q: %q, want %q", tc.first, tc.last, got, tc.want)
		}
	}
}

func TestLabels(t *testing.T) {
	long := strings.Repeat("ä", MaxLabel)
	for _, tc := range []struct{ name, label, want string }{
		{"plain", "cnibox:0123 pod default/web", "cnibox:0123 pod default/web"},
		{"empty", "", ""},
		{"UTF-8", "größe", "größe"},
		{"cut between characters", "x" + long, "x" + strings.Repeat("ä", 59)},
		{"as long as may be", strings.Repeat("a", MaxLabel), strings.Repeat("a", MaxLabel)},
		{"NUL and newline", "a\x00b\nc", "a?b?c"},
		{"quotes", `a"; flush ruleset; "\`, `a?; flush ruleset; ??`},
		{"terminal", "\x1b[31m", "?[31m"},
		{"broken UTF-8", "a\xffb", "a?b"},
	} {
		got := CleanLabel(tc.label)
		if got != tc.want || CleanLabel(got) != got {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
		if back := LabelOf(LabelUserData(got)); back != got {
			t.Errorf("%s: read back %q, want %q", tc.name, back, got)
		}
	}
}

// codecSchema returns a schema with sets and maps of most field types.
func codecSchema() Schema {
	set := func(name string, key, data []Field) *Set {
		return &Set{Table: Table{unix.NFPROTO_INET, "test"}, Name: name, Key: key, Data: data}
	}
	return Schema{{Sets: []*Set{
		set("masq4", []Field{IfPattern, IP4Prefix}, nil),
		set("masq6", []Field{IfPattern, IP6Prefix}, nil),
		set("macguard_ports", []Field{IfName}, nil),
		set("macguard_pairs", []Field{IfName, EtherAddr}, nil),
		set("test_ports", []Field{IP4Addr, InetProto, InetService}, []Field{IP4Addr, InetService}),
		set("test_policy", []Field{IP4Addr}, []Field{Verdict}),
		set("test_marks", []Field{PacketMark}, nil),
		set("test_services", []Field{InetService}, []Field{PacketMark}),
	}}}
}

// FuzzDecode feeds random bytes to the decoders. Another program may have written
// the elements that the kernel sends.
func FuzzDecode(f *testing.F) {
	schema := codecSchema()
	for _, e := range []*Element{
		{Shared: true, Set: "masq4", Key: []string{"cni0", "10.0.0.0/8"}, Label: "label"},
		{Shared: true, Set: "masq4", Key: []string{"veth*", "10.0.0.0/8"}, Label: "label"},
		{Set: "macguard_pairs", Key: []string{"veth1", "02:00:00:00:00:01"}, Label: "label"},
		{Set: "test_ports", Key: []string{"10.0.0.1", "tcp", "80"}, Value: []string{"10.0.0.2", "8080"}, Label: "label"},
		{Set: "test_policy", Key: []string{"10.0.0.1"}, Value: []string{"jump test_net"}},
	} {
		n, err := EntryOf(schema, e)
		if err != nil {
			f.Fatal(err)
		}
		m := elementMessage(unix.NFT_MSG_NEWSETELEM, 0, []*Entry{n})
		back, err := decodeEntries(n.Set, m.Body[4:])
		if err != nil || len(back) != 1 {
			f.Fatalf("decode %s: %v, %v", n, back, err)
		}
		if diff := cmp.Diff(e, back[0].element(), cmp.FilterPath(func(p cmp.Path) bool { return p.String() == "Shared" }, cmp.Ignore())); diff != "" {
			f.Errorf("round trip (-want +got):\n%s", diff)
		}
		f.Add([]byte(m.Body[4:]))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, set := range schema.Sets() {
			entries, _ := decodeEntries(set, b)
			for _, n := range entries {
				checkText(t, n.String())
				checkText(t, n.label)
				n.covers(n)
			}
		}
		_, _ = decodeElements(b)
		_, _ = decodeChain(unix.NFPROTO_INET, b)
	})
}

func FuzzUserData(f *testing.F) {
	f.Add(LabelUserData("cnibox:01 pod"))
	f.Add([]byte{1, 2, 3, 4, 0, 3, 'a', 'b', 0})
	f.Add([]byte{0, 255, 'a'})
	f.Fuzz(func(t *testing.T, b []byte) {
		checkText(t, LabelOf(b))
		label := CleanLabel(string(b))
		checkText(t, label)
		if len(label) > MaxLabel || LabelOf(LabelUserData(label)) != label {
			t.Errorf("label %q of %q", label, b)
		}
	})
}

func FuzzElement(f *testing.F) {
	f.Add("masq4", "cni0", "10.0.0.0/8")
	f.Add("masq4", "veth*", "10.0.0.0/8")
	f.Add("macguard_pairs", "veth1", "02:00:00:00:00:01")
	f.Add("test_policy", "10.0.0.1", "goto chain")
	schema := codecSchema()
	f.Fuzz(func(t *testing.T, set, first, second string) {
		for _, e := range []*Element{
			{Set: set, Key: []string{first, second}},
			{Set: set, Key: []string{first}, Value: []string{second}},
		} {
			n, err := EntryOf(schema, e)
			if err != nil {
				continue
			}
			again, err := EntryOf(schema, n.element())
			if err != nil || !again.sameKey(n) || string(again.data) != string(n.data) {
				t.Errorf("%+v reads back as %+v: %v", e, n.element(), err)
			}
		}
	})
}

// checkText fails the test for a text that must not reach a terminal.
func checkText(t *testing.T, s string) {
	t.Helper()
	if !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == '"' || r == 0x7f }) {
		t.Errorf("unprintable text %q", s)
	}
}

// TestMessagesStayWithinAttributes checks the size of messages. One attribute
// holds all elements of a message, and the length of an attribute has 16 bits.
func TestMessagesStayWithinAttributes(t *testing.T) {
	widest := codecSchema().set("test_ports")
	var entries []*Entry
	for i := range 1000 {
		entries = append(entries, &Entry{
			Set: widest, Key: make([]byte, widest.keySize()), end: make([]byte, 100), data: make([]byte, 100), label: strings.Repeat("x", MaxLabel-i%2),
		})
	}
	msgs := ElementMessages(unix.NFT_MSG_NEWSETELEM, 0, entries)
	total := 0
	for _, m := range msgs {
		if err := nlconn.EachAttr(m.Body[4:], func(uint16, []byte) error { return nil }); err != nil {
			t.Errorf("message of %d bytes: %v", len(m.Body[4:]), err)
		}
		if elements, err := decodeElements(m.Body[4:]); err != nil || len(elements) > maxPerMessage || len(m.Body[4:]) >= 1<<16 {
			t.Errorf("message of %d elements and %d bytes: %v", len(elements), len(m.Body[4:]), err)
		} else {
			total += len(elements)
		}
	}
	if total != len(entries) {
		t.Errorf("%d elements in the messages, want %d", total, len(entries))
	}
}

// FuzzTraced feeds random bytes to the decoder of traces.
func FuzzTraced(f *testing.F) {
	m := Request(unix.NFT_MSG_TRACE, 0, unix.NFPROTO_INET)
	m.Text(unix.NFTA_TRACE_TABLE, "t")
	m.Nest(unix.NFTA_TRACE_VERDICT, func() { m.Net32(unix.NFTA_VERDICT_CODE, VerdictDrop) })
	f.Add([]byte(m.Body))
	f.Fuzz(func(_ *testing.T, b []byte) { _, _ = DecodeTraced(b) })
}
