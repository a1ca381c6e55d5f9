package bandwidth_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/test/await"
)

const (
	rate  = 20_000_000 // bits per second
	burst = 1_000_000  // bits
	// goodput is the share of TCP payload in a full Ethernet frame. The kernel
	// counts whole frames.
	goodput = 1448.0 / 1514
	// settled is the number of bytes after which the burst is used up and TCP
	// has retransmitted what was lost at its end. measured is the number of
	// bytes that are timed after that.
	settled  = burst/8 + rate/8
	measured = rate / 8 * 2
	// within is the accepted relative difference from the configured rate.
	within = 0.10
	// attempts is the number of measurements. If the machine pauses for longer
	// than the burst lasts, the tokens of the pause are lost.
	attempts = 10
)

// pod is a container behind a bridge and the bandwidth role.
type pod struct {
	*rolestest.Env
	t  *testing.T
	ns *netopstest.NS
	id string
}

func newPod(t *testing.T) *pod {
	t.Helper()
	p := &pod{Env: rolestest.NewEnv(t, all.Table()), t: t, ns: netopstest.New(t), id: "c1"}
	t.Cleanup(func() {
		p.Run(rolestest.Call{Type: "bridge", Verb: "GC", Conf: p.conf(bridge, map[string]any{"cni.dev/valid-attachments": []any{}})})
	})
	return p
}

// conf is a plugin's configuration as it is in the list.
func (p *pod) conf(plugin string, more map[string]any) string {
	p.t.Helper()
	return rolestest.WithKeys(p.t, rolestest.WithKeys(p.t, plugin, map[string]any{"cniVersion": "1.1.0", "name": "pods"}), more)
}

// call is a call of one plugin for one interface, with the previous plugin's
// result.
func (p *pod) call(verb, ifName, plugin, prev string) rolestest.Call {
	p.t.Helper()
	var typ struct{ Type string }
	must(p.t, json.Unmarshal([]byte(plugin), &typ))
	more := map[string]any{}
	if prev != "" {
		more["prevResult"] = json.RawMessage(prev)
	}
	return rolestest.Call{Type: typ.Type, Verb: verb, ID: p.id, Netns: p.ns.Path(), IfName: ifName, Conf: p.conf(plugin, more)}
}

// add attaches an interface and limits it. It returns both results.
func (p *pod) add(ifName, limits string) (attached, limited string) {
	p.t.Helper()
	attached = p.OK(p.call("ADD", ifName, bridge, "")).Stdout
	return attached, p.OK(p.call("ADD", ifName, limits, attached)).Stdout
}

// result decodes a plugin's output.
func result(t *testing.T, answer string) *roles.Result {
	t.Helper()
	r := new(roles.Result)
	must(t, json.Unmarshal([]byte(answer), r))
	return r
}

// stream sends from one namespace to an address of another as fast as possible.
// It returns the received bits per second after the burst is used up. A nil
// namespace is the host's.
func stream(t *testing.T, from, to *netopstest.NS, address string) float64 {
	t.Helper()
	var l net.Listener
	in(t, to, func() (err error) {
		l, err = net.Listen("tcp4", address+":0")
		return err
	})
	defer l.Close()
	var out net.Conn
	in(t, from, func() (err error) {
		out, err = net.DialTimeout("tcp4", l.Addr().String(), await.Patience)
		return err
	})
	defer out.Close()
	conn, err := l.Accept()
	must(t, err)
	defer conn.Close()
	go func() {
		b := make([]byte, 64<<10)
		for err := error(nil); err == nil; {
			_, err = out.Write(b)
		}
	}()
	must(t, conn.SetReadDeadline(await.Deadline()))
	_, err = io.CopyN(io.Discard, conn, settled)
	must(t, err)
	start := time.Now()
	_, err = io.CopyN(io.Discard, conn, measured)
	must(t, err)
	return measured * 8 / time.Since(start).Seconds()
}

// in runs f on a thread in the namespace.
func in(t *testing.T, ns *netopstest.NS, f func() error) {
	t.Helper()
	if ns != nil {
		ns.Do(t, f)
		return
	}
	must(t, f())
}

// TestRate measures TCP in both directions: the rate is reached and not
// exceeded.
func TestRate(t *testing.T) {
	p := newPod(t)
	_, limited := p.add("eth0", fmt.Sprintf(`{"type":"bandwidth","ingressRate":%d,"ingressBurst":%d,"egressRate":%d,"egressBurst":%d}`, rate, burst, 2*rate, burst))
	own := result(t, limited).IPs[0].Address.IP.String()
	for _, c := range []struct {
		name     string
		from, to *netopstest.NS
		address  string
		rate     float64
	}{
		{"ingress", nil, p.ns, own, rate},
		{"egress", p.ns, nil, "10.1.0.1", 2 * rate},
	} {
		t.Run(c.name, func(t *testing.T) {
			for n := 1; ; n++ {
				have := stream(t, c.from, c.to, c.address)
				off := have/(c.rate*goodput) - 1
				t.Logf("%.2f Mbit/s, %+.1f %%", have/1e6, off*100)
				if off > -within && off < within {
					return
				}
				if n == attempts {
					t.Fatalf("the rate is not within %.0f %% of %.0f Mbit/s", within*100, c.rate*goodput/1e6)
				}
			}
		})
	}
}
