package topo

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
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

// TestPage opens the page in a browser. A search finds one pod among many, the page has no error, and no text of
// a pod becomes markup.
func TestPage(t *testing.T) {
	browser, err := exec.LookPath("chromium-headless-shell")
	if err != nil {
		t.Fatal("install chromium-headless-shell, as 'make setup' does")
	}
	for _, n := range []int{5, 250} {
		file := filepath.Join(t.TempDir(), "page.html")
		if err := os.WriteFile(file, []byte(many(n).HTML()), 0o600); err != nil {
			t.Fatal(err)
		}
		wanted := fmt.Sprintf("default/pod-%03d", n-1)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, browser, "--no-sandbox", "--disable-gpu", "--user-data-dir="+t.TempDir(), "--enable-logging=stderr", "--dump-dom", "file://"+file+"#"+wanted)
		var messages strings.Builder
		cmd.Stderr = &messages
		dom, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v\n%s", err, messages.String())
		}
		if strings.Contains(messages.String(), "CONSOLE") {
			t.Errorf("%d pods: errors of the page:\n%s", n, messages.String())
		}
		for _, want := range []string{
			`<span id="count">1 found</span>`, `<pre id="details">` + wanted + "\n", fmt.Sprintf("<span>3 devices, %d attachments, %d with problems</span>", n, n/10),
		} {
			if !strings.Contains(string(dom), want) {
				t.Errorf("%d pods: the page lacks %q", n, want)
			}
		}
		if strings.Contains(string(dom), "<script>alert") || strings.Contains(string(dom), "<b>") {
			t.Errorf("%d pods: a text became markup", n)
		}
	}
}

// TestDrawing: the other forms have every device and attachment once, and no text becomes markup.
func TestDrawing(t *testing.T) {
	top := many(30)
	for name, text := range map[string]string{"text": top.Text(nil), "dot": top.DOT(), "svg": top.SVG()} {
		for _, a := range top.Attachments {
			if !strings.Contains(text, a.Pod) {
				t.Errorf("%s lacks %s", name, a.Pod)
			}
		}
		if name == "svg" && strings.Contains(text, "<script") {
			t.Errorf("%s: a text became markup", name)
		}
	}
	if got := top.Devices[0].details(); got != "device 192.0.2.1/24 mtu 1500 rx 5.0 GiB tx 0 B dropped 2" {
		t.Error(got)
	}
}

// TestTimeline: the bars of many calls are within the drawing, those of a container are on one line of a group, and the
// newest group is first.
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
	for what, want := range map[string]int{`class="call problem"`: 10, ": 50 calls in 199.0 ms": 19, ": 40 calls in 159.0 ms": 1, ": 10 calls in 39.0 ms": 1, ">web-1<": 1} {
		if n := strings.Count(text, what); n != want {
			t.Errorf("%q %d times, want %d", what, n, want)
		}
	}
	if last, first := strings.Index(text, "05:10:07.000"), strings.Index(text, "03:10:07.000"); last < 0 || last > first {
		t.Error("the newest group is not first")
	}
	places := map[string]string{}
	for _, m := range regexp.MustCompile(`data-details="(\w+) ?\d*\.?"><svg x="(\d+)" y="(\d+)" width="(\d+)"`).FindAllStringSubmatch(text, -1) {
		x, _ := strconv.Atoi(m[2])
		width, _ := strconv.Atoi(m[4])
		if place := m[2] + " " + m[3]; x < groupX || width < barLeast || x+width > groupX+groupWidth || places[place] != "" {
			t.Errorf("bar %q is at %s", m[0], place)
		} else {
			places[place] = m[0]
		}
	}
	if len(places) != len(calls) {
		t.Errorf("%d bars, want %d", len(places), len(calls))
	}
}
