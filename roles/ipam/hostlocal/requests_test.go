package hostlocal

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// annotated returns the runtimeConfig of a pod with one annotation.
func annotated(key, value string) string {
	return `"runtimeConfig": {"io.kubernetes.cri.pod-annotations": {"` + key + `": "` + value + `", "other": "x"}}`
}

// TestRequestSources: the precedence is runtimeConfig.ips, args.cni.ips, CNI_ARGS, the annotation.
func TestRequestSources(t *testing.T) {
	const (
		ips  = `"runtimeConfig": {"ips": ["10.1.0.10"], "io.kubernetes.cri.pod-annotations": {"cnibox.io/ips": "10.1.0.13"}}`
		args = `"args": {"cni": {"ips": ["10.1.0.11"]}}`
		env  = "IP=10.1.0.12"
	)
	for name, c := range map[string]struct {
		more []string
		env  string
		want string
	}{
		"all":                  {[]string{ips, args}, env, "10.1.0.10"},
		"args.cni.ips":         {[]string{annotated("cnibox.io/ips", "10.1.0.13"), args}, env, "10.1.0.11"},
		"CNI_ARGS":             {[]string{annotated("cnibox.io/ips", "10.1.0.13")}, env, "10.1.0.12"},
		"annotation":           {[]string{annotated("cnibox.io/ips", "10.1.0.13")}, "", "10.1.0.13"},
		"of the network":       {[]string{annotated("cnibox.io/ips.net", "10.1.0.14")}, "", "10.1.0.14"},
		"of another network":   {[]string{annotated("cnibox.io/ips.other", "10.1.0.14")}, "", "10.1.0.2"},
		"nothing is asked for": {nil, "", "10.1.0.2"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newStickyBed(t)
			a := b.handlerFor(t, `"subnet": "10.1.0.0/24"`, c.more...)
			expect(t, b.add(t, a, withArgs(t, request1("c"), c.env)), c.want)
		})
	}
	b := newStickyBed(t)
	a := b.handlerFor(t, `"subnet": "10.1.0.0/24", "requests": {"annotation": "example.com/ip"}`, annotated("example.com/ip", "10.1.0.77"))
	expect(t, b.add(t, a, request1("c")), "10.1.0.77")
}

// TestRequestRefused: the error of a refused request has the reason.
func TestRequestRefused(t *testing.T) {
	for addr, want := range map[string]string{
		"10.1.0.0":    "10.1.0.0 is in no range: it is the network address of 10.1.0.0/24",
		"10.1.0.255":  "10.1.0.255 is in no range: it is the broadcast address of 10.1.0.0/24",
		"10.1.0.1":    "10.1.0.1 is the gateway of 10.1.0.0/24",
		"10.1.0.5":    "10.1.0.5 is excluded from 10.1.0.0/24",
		"10.1.0.200":  "10.1.0.200 is in no range: 10.1.0.0/24 has only 10.1.0.1-10.1.0.99",
		"192.168.0.9": "192.168.0.9 is in no range",
	} {
		for _, mode := range []string{"strict", "prefer"} {
			b := newStickyBed(t)
			a := b.handlerFor(t, `"ranges": [[{"subnet": "10.1.0.0/24", "rangeEnd": "10.1.0.99", "exclude": ["10.1.0.5"]}]], "requests": {"mode": "`+mode+`"}`,
				annotated("cnibox.io/ips", addr))
			err := b.addFails(t, a, request1("c"))
			if full := `runtimeConfig["io.kubernetes.cri.pod-annotations"]["cnibox.io/ips"]: ` + want; !errors.Is(err, roles.ErrConf) || err.Error() != full {
				t.Errorf("%s: %v, want %s", mode, err, full)
			}
		}
	}
}

// TestRequestTaken: in strict mode the error names the holder of a taken address. Otherwise ADD uses
// another address.
func TestRequestTaken(t *testing.T) {
	const subnet = `"subnet": "10.1.0.0/24"`
	b := newStickyBed(t)
	a := b.handlerFor(t, subnet, annotated("cnibox.io/ips", "10.1.0.9"))
	b.add(t, a, request1("one"))
	err := b.addFails(t, a, request1("two"))
	if !errors.Is(err, store.ErrTaken) || !strings.Contains(err.Error(), `["cnibox.io/ips"]: address 10.1.0.9: taken by "eth0" of container "one" on network "net"`) {
		t.Error(err)
	}
	prefer := b.handlerFor(t, subnet+`, "requests": {"mode": "prefer"}`, annotated("cnibox.io/ips", "10.1.0.9"))
	expect(t, b.add(t, prefer, request1("two")), "10.1.0.10")
	b.del(t, a, request1("one"))
	expect(t, b.add(t, prefer, request1("three")), "10.1.0.9")
	if _, err := newHandler([]byte(b.conf(`{` + subnet + `, "requests": {"mode": "maybe"}, "sticky": {"key": "x"}}`))); err == nil || !strings.Contains(err.Error(), "ipam.requests.mode: \"maybe\"") || !strings.Contains(err.Error(), "ipam.sticky.key: \"x\"") {
		t.Error(err)
	}
}

// TestRequestOfKept: a request overrides a reservation for another pod unless the mode is strict, and
// overrides a cool-down, because a Deployment's next pod has another name and requests the same
// address.
func TestRequestOfKept(t *testing.T) {
	for mode, fails := range map[string]bool{"prefer": false, "strict": true} {
		b := newStickyBed(t)
		a := b.handlerFor(t, `"subnet": "10.1.0.0/24", "sticky": {"mode": "`+mode+`"}`, annotated("cnibox.io/ips", "10.1.0.9"))
		b.add(t, a, podRequest(t, "a", "web-7d4f-abcde"))
		b.del(t, a, podRequest(t, "a", "web-7d4f-abcde"))
		if fails {
			err := b.addFails(t, a, podRequest(t, "b", "web-7d4f-fghij"))
			if !errors.Is(err, store.ErrTaken) || !strings.Contains(err.Error(), `kept for "pod:default/web-7d4f-abcde/eth0" until 2026-03-04T05:11:07Z`) {
				t.Error(err)
			}
			b.pass(300 * time.Second)
		}
		expect(t, b.add(t, a, podRequest(t, "b", "web-7d4f-fghij")), "10.1.0.9")
	}
}
