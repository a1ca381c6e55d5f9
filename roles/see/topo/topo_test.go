package topo

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/test/browser"
)

// many returns a node with a number of attachments. Every tenth has a problem.
func many(n int) *Topology {
	t := &Topology{Node: `node "1" <b>`, Devices: []Device{
		{Name: "eth0", Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}, MTU: 1500, Up: true, Traffic: Traffic{ReceivedBytes: 5 << 30, SentDropped: 2}},
		{Name: "flannel.1", Kind: "vxlan", MTU: 1450, Up: true, Lower: "eth0"},
		{Name: "cni0", Kind: "bridge", Addresses: []netip.Prefix{netip.MustParsePrefix("10.244.1.1/24")}, MTU: 1450, Up: true},
	}}
	for i := range n {
		a := Attachment{
			Container: fmt.Sprintf("%064x", i), Pod: fmt.Sprintf("default/pod-%03d", i), Network: "pods", IfName: "eth0", HostLink: fmt.Sprintf("veth%d", i),
			Addresses: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, 1, byte(i + 2)}), 24)}, Device: "cni0",
		}
		if i%10 == 9 {
			a.Problems = []string{`route </script><script>alert("x")</script> is absent`}
		}
		t.Attachments = append(t.Attachments, a)
	}
	return t
}

// TestPeers: the line of a tunnel has its peers, whatever its kind.
func TestPeers(t *testing.T) {
	for _, kind := range []string{"vxlan", "wireguard"} {
		d := Device{Name: "flannel-wg", Kind: kind, MTU: 1420, Up: true, IsTunnel: true, Peers: []netip.Addr{netip.MustParseAddr("192.0.2.2")}}
		if have := d.details(); !strings.HasPrefix(have, kind+" mtu 1420 peers 1 192.0.2.2 rx ") {
			t.Errorf("have %q", have)
		}
	}
}

// cluster returns a node with an overlay, policies, and pods whose names and addresses are as long as they can be.
func cluster() *Topology {
	t := many(12)
	t.Devices[0].Uplink = true
	vxlan := &t.Devices[1]
	vxlan.IsTunnel = true
	for i := range drawnPeers + 3 {
		vxlan.Peers = append(vxlan.Peers, netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 2)}))
	}
	t.Devices = append(t.Devices, Device{Name: "eth1", MTU: 1500}, Device{Name: "br1", Kind: "bridge", Addresses: []netip.Prefix{netip.MustParsePrefix("10.9.0.1/24")}, MTU: 1500})
	for i := range t.Attachments {
		a := &t.Attachments[i]
		a.Masquerade = true
		a.Traffic = Traffic{ReceivedBytes: 7 << 50, SentBytes: 1 << 60, ReceivedPackets: 1 << 63, SentPackets: 5}
	}
	long := &t.Attachments[3]
	long.Pod = "default/" + strings.Repeat("long-name-", 24) + "0"
	long.Addresses = append(long.Addresses, netip.MustParsePrefix("fd00:1234:5678:9abc:def0:1234:5678:9abc/128"))
	long.Problems = []string{strings.Repeat("without-a-space", 30), "address 10.244.1.5/24 dev eth0 netns container: want present, have absent: cnibox repair"}
	t.Attachments[4].Egress, t.Attachments[4].Ingress = []string{"default/deny-all"}, []string{"default/deny-all", "default/allow-web"}
	t.Attachments[4].DeniedPackets, t.Attachments[4].Traffic.SentDropped = 7, 3
	t.Attachments[5].Ingress = []string{"a/1", "a/2", "a/3"}
	t.Attachments = append(t.Attachments,
		Attachment{Container: "routed", Pod: "default/routed", Network: "ptp", IfName: "net1", HostLink: "veth9", Ports: []string{"8080/tcp"}},
		Attachment{Container: "down", Pod: "default/down", Network: "other", IfName: "eth0", Device: "br1"})
	return t
}

// file writes a text to a file and returns its URL.
func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return "file://" + path
}

// TestPage opens the page in a browser. A search finds one pod among many, the page has no error, and no text of
// a pod becomes markup.
func TestPage(t *testing.T) {
	for _, n := range []int{5, 250} {
		wanted := fmt.Sprintf("default/pod-%03d", n-1)
		p := browser.Open(t, file(t, "page.html", many(n).HTML())+"#"+wanted)
		dom := p.Text("document.documentElement.outerHTML")
		for _, want := range []string{
			`<span id="count">1 found</span>`, `<pre id="details">` + wanted + " eth0 on pods\n", fmt.Sprintf("<span>3 devices, %d attachments, %d with problems</span>", n, n/10),
		} {
			if !strings.Contains(dom, want) {
				t.Errorf("%d pods: the page lacks %q", n, want)
			}
		}
		if strings.Contains(dom, "<script>alert") || strings.Contains(dom, "<b>") {
			t.Errorf("%d pods: a text became markup", n)
		}
		if all := p.Messages(); len(all) > 0 {
			t.Errorf("%d pods: errors of the page: %v", n, all)
		}
	}
}

// TestReadable: on a wide and on a narrow page, light and dark, every text is whole and within its box.
func TestReadable(t *testing.T) {
	top := cluster()
	content := top.Content() + Timeline([]Call{
		{Time: time.Unix(100, 0), Took: time.Microsecond, Container: top.Attachments[3].Pod, Text: "ADD bridge 50.1 ms", Details: "1"},
		{Time: time.Unix(100, 1e6), Took: time.Second, Container: "db", Text: "ADD portmap 1000.0 ms", Details: "2", Failed: true},
	})
	p := browser.Open(t, file(t, "page.html", Page("n1", content, false)))
	for _, width := range []int{1400, 390} {
		for _, scheme := range []string{"light", "dark"} {
			p.Show(width, scheme)
			for _, fault := range p.Faults() {
				t.Errorf("%d %s: %s", width, scheme, fault)
			}
			picture(t, p, fmt.Sprintf("page-%d-%s", width, scheme), width)
		}
	}
	if right := p.Text("(Math.max(...boxes().map((b) => b.getBoundingClientRect().right)) > 0.9 * innerWidth).toString()"); right != "true" {
		t.Error("the boxes leave a part of the page empty")
	}
	p = browser.Open(t, file(t, "topo.svg", top.SVG()))
	p.Show(drawingWidth+gutter, "light")
	for _, fault := range p.Faults() {
		t.Errorf("the drawing: %s", fault)
	}
	picture(t, p, "topo-svg", drawingWidth+gutter)
}

// picture writes what a person shall look at to the directory CNIBOX_PICTURES, if there is one.
func picture(t *testing.T, p *browser.Page, name string, width int) {
	t.Helper()
	if dir := os.Getenv("CNIBOX_PICTURES"); dir != "" {
		p.Picture(filepath.Join(dir, name+".png"), width, 0)
	}
}

// TestKeyboard: keys go to each box and choose it, and the box that has the focus is marked.
func TestKeyboard(t *testing.T) {
	p := browser.Open(t, file(t, "page.html", cluster().HTML()))
	const focus = "document.activeElement.dataset.details"
	detail := func(n string) string { return p.Text("boxes()[" + n + "].dataset.details") }
	p.Wait("document.activeElement === search")
	p.Press("Tab")
	if have := p.Text(focus); have != detail("0") {
		t.Fatalf("Tab from the search goes to %q", have)
	}
	p.Press("ArrowDown", "ArrowDown", "ArrowUp", "Enter")
	if have := p.Text("details.textContent"); have != detail("1") || p.Text(focus) != have {
		t.Errorf("chosen is %q, and %q has the focus", have, p.Text(focus))
	}
	if have := p.Text("getComputedStyle(document.activeElement).outlineStyle"); have != "solid" {
		t.Errorf("the outline of the focus is %q", have)
	}
}

// TestGraph: the boxes below each box, and what is at the edges.
func TestGraph(t *testing.T) {
	var write func(all []*node, indent string) string
	write = func(all []*node, indent string) (out string) {
		for _, n := range all {
			out += indent + n.class
			for _, l := range append(n.edge, n.lines[0]) {
				out += " | " + l[:min(len(l), 24)]
			}
			out += "\n" + write(n.children, indent+"  ")
		}
		return out
	}
	top := cluster()
	top.Devices[1].Peers = top.Devices[1].Peers[:1]
	top.Attachments = append(top.Attachments[3:6], top.Attachments[12:]...)
	before := cluster()
	for i := range before.Attachments {
		before.Attachments[i].Traffic = Traffic{SentPackets: 1}
	}
	top.Since(before, 4*time.Second)
	const want = `uplink | eth0
  device | masqueraded by eth0 | cni0
    attachment problem | veth3 | sent 1.8 PiB/s, 23058430 | received 256 PiB/s, 1.0  | default/long-name-long-n
    attachment | veth4 | sent 1.8 PiB/s, 23058430 | received 256 PiB/s, 1.0  | ! dropped 3 | policies default/allow-w | ! denied 7 by policies | default/pod-004
    attachment | veth5 | sent 1.8 PiB/s, 23058430 | received 256 PiB/s, 1.0  | policies a/1, a/2, a/3 | default/pod-005
  device problem | routed by eth0 | br1
    attachment | default/down
  tunnel | on eth0 | flannel.1
    peer | 192.0.2.2
  device | routed by eth0 | routed by the host
    attachment | veth9 | sent 0 B, 0 packets | received 0 B, 0 packets | default/routed
device | eth1
`
	if have := write(top.graph(), ""); have != want {
		t.Errorf("have\n%swant\n%s", have, want)
	}
}

// TestTranslation: the edge above masqueraded containers names the addresses with which their packets leave.
func TestTranslation(t *testing.T) {
	v4, v6 := netip.MustParsePrefix("10.9.0.2/24"), netip.MustParsePrefix("fd09::2/64")
	one := func(addresses []netip.Prefix, egress ...string) *Attachment {
		a := &Attachment{Masquerade: true, Addresses: addresses}
		for _, e := range egress {
			a.EgressAddresses = append(a.EgressAddresses, netip.MustParseAddr(e))
		}
		return a
	}
	both := []netip.Prefix{v4, v6}
	for _, v := range []struct {
		want        string
		attachments []*Attachment
	}{
		{"masqueraded by eth0", []*Attachment{one(both)}},
		{"leaving with 203.0.113.7 by eth0", []*Attachment{one(both[:1], "203.0.113.7"), one(both[:1], "203.0.113.7"), {Addresses: both}}},
		{"leaving with 2001:db8::7 or 203.0.113.7 by eth0", []*Attachment{one(both, "203.0.113.7", "2001:db8::7")}},
		{"masqueraded by eth0, or leaving with 203.0.113.7", []*Attachment{one(both, "203.0.113.7")}},
		{"masqueraded by eth0, or leaving with 203.0.113.7 or 203.0.113.8", []*Attachment{one(both[:1], "203.0.113.8"), one(both[:1], "203.0.113.7"), one(both[:1])}},
	} {
		if _, have := (&group{attachments: v.attachments}).above("eth0"); have != v.want {
			t.Errorf("have %q, want %q", have, v.want)
		}
	}
}

// TestDrawing: the other forms have every device and attachment once, and no text becomes markup.
func TestDrawing(t *testing.T) {
	top := many(30)
	top.Attachments[0].Network = "\x00\x1b\uffff\xff]]>"
	for name, text := range map[string]string{"text": top.Text(nil), "dot": top.DOT(), "svg": top.SVG()} {
		for _, a := range top.Attachments {
			if !strings.Contains(text, a.Pod) {
				t.Errorf("%s lacks %s", name, a.Pod)
			}
		}
		if name == "svg" && strings.Contains(text, "<script") {
			t.Errorf("%s: a text became markup", name)
		}
		for d := xml.NewDecoder(strings.NewReader(text)); name == "svg"; {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
	if got := top.Devices[0].details(); got != "device 192.0.2.1/24 mtu 1500 rx 5.0 GiB tx 0 B dropped 2" {
		t.Error(got)
	}
}

// TestTimeline: the bars of many calls are within the drawing, and the newest group is first.
func TestTimeline(t *testing.T) {
	if text := Timeline(nil); !strings.Contains(text, "No call") {
		t.Error(text)
	}
	var calls []Call
	start := time.Date(2026, 9, 30, 3, 10, 7, 0, time.UTC)
	for i := range 1000 { // each container has two calls, one after the other
		at := start.Add(time.Duration(i) * 4 * time.Millisecond)
		if i >= 990 {
			at = at.Add(time.Hour)
		}
		calls = append(calls, Call{
			Time: at, Took: 3 * time.Millisecond, Container: fmt.Sprintf("web-%d", i/2), Text: "ADD bridge", Details: fmt.Sprintf("call %d.", i), Failed: i%100 == 0,
		})
	}
	calls = append(calls, Call{Time: start.Add(2 * time.Hour), Took: -1, Container: "odd", Text: "DEL", Details: "last"})
	text := Timeline(calls)
	for i := range 1000 {
		if n := strings.Count(text, fmt.Sprintf(`data-details="call %d."`, i)); n != 1 {
			t.Errorf("call %d is drawn %d times", i, n)
		}
	}
	for what, want := range map[string]int{`class="call problem"`: 10, ": 50 calls in 199.0 ms": 19, ": 40 calls in 159.0 ms": 1, ": 10 calls in 39.0 ms": 1, ">web-1<": 2} {
		if n := strings.Count(text, what); n != want {
			t.Errorf("%q %d times, want %d", what, n, want)
		}
	}
	if last, first := strings.Index(text, "05:10:07.000"), strings.Index(text, "03:10:07.000"); last < 0 || last > first {
		t.Error("the newest group is not first")
	}
	bars := regexp.MustCompile(`<rect x="([\d.]+)%" width="([\d.]+)%"/>`).FindAllStringSubmatch(text, -1)
	for _, m := range bars {
		x, _ := strconv.ParseFloat(m[1], 64)
		if width, _ := strconv.ParseFloat(m[2], 64); x+width > 100+leastBar {
			t.Errorf("a bar is %q", m[0])
		}
	}
	if len(bars) != len(calls) {
		t.Errorf("%d bars, want %d", len(bars), len(calls))
	}
}
