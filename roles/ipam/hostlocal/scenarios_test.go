package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// TestReferenceScenarios are the scenarios of the reference plugin's own tests.
func TestReferenceScenarios(t *testing.T) {
	for name, run := range map[string]func(t *testing.T, b *bed){
		"two ifnames of one container":                  scenarioTwoIfNames,
		"repeated ADD errors, others continue":          scenarioRepeated,
		"DEL of a file without ifname":                  scenarioNoIfName,
		"whitespace in stored ids is trimmed":           scenarioTrim,
		"unknown id DEL":                                scenarioUnknown,
		"quiet first use":                               scenarioQuiet,
		"requested IP":                                  scenarioRequested,
		"requested IP in use, before start, after end":  scenarioRequestedBad,
		"several ranges":                                scenarioSeveral,
		"two families":                                  scenarioFamilies,
		"unused requested IP fails":                     scenarioUnused,
		"round robin, wrap from begin, middle and end":  scenarioWrap,
		"no broadcast":                                  scenarioNoBroadcast,
		"exhaustion message":                            scenarioExhaustion,
		"last IP at the end of a range, and no last IP": scenarioLast,
		"one requested IP of each set":                  scenarioMultiSet,
	} {
		t.Run(name, func(t *testing.T) { run(t, newBed(t)) })
	}
}

func expect(t *testing.T, got []string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatal(diff)
	}
}

func scenarioTwoIfNames(t *testing.T, b *bed) {
	t.Helper()
	a := b.handlerFor(t, `{"subnet": "10.1.2.0/24"}`)
	expect(t, b.add(t, a, requestFor("one", "eth0")), "10.1.2.2")
	expect(t, b.add(t, a, requestFor("one", "eth1")), "10.1.2.3")
	b.del(t, a, requestFor("one", "eth0"))
	expect(t, b.leases(t), "10.1.2.3 one eth1")
}

func scenarioRepeated(t *testing.T, b *bed) {
	t.Helper()
	a := b.handlerFor(t, `{"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.2.2.0/24"}]]}`)
	expect(t, b.add(t, a, request1("one")), "10.1.2.2", "10.2.2.2")
	err := b.addFails(t, a, request1("one"))
	if !errors.Is(err, roles.ErrAttached) || !strings.Contains(err.Error(), `already attached: container "one" interface "eth0" on network "net" has 10.1.2.2, 10.2.2.2 since `) {
		t.Error(err)
	}
	// The reference accepts a request in a repeated ADD, and leaks the first address.
	b.addFails(t, a, withArgs(t, request1("one"), "IP=10.1.2.77"))
	expect(t, b.add(t, a, request1("two")), "10.1.2.3", "10.2.2.3")
}

func scenarioNoIfName(t *testing.T, b *bed) {
	t.Helper()
	b.writeDir(t, "net", map[string]string{"10.1.2.9": "one"})
	a := b.handlerFor(t, `{"subnet": "10.1.2.0/24"}`)
	expect(t, b.add(t, a, request1("two")), "10.1.2.2")
	expect(t, b.leases(t), "10.1.2.2 two eth0", "10.1.2.9 one")
	if err := a.Check(context.Background(), b.Host, checkRequest("one")); err != nil {
		t.Error(err)
	}
	b.del(t, a, request1("one"))
	expect(t, b.leases(t), "10.1.2.2 two eth0")
}

func scenarioTrim(t *testing.T, b *bed) {
	t.Helper()
	b.writeDir(t, "net", map[string]string{"10.1.2.9": "   one\r\neth0 \n"})
	a := b.handlerFor(t, `{"subnet": "10.1.2.0/24"}`)
	b.add(t, a, request1("two"))
	b.addFails(t, a, request1("one"))
	b.del(t, a, request1("one"))
	expect(t, b.leases(t), "10.1.2.2 two eth0")
}

func scenarioUnknown(t *testing.T, b *bed) {
	t.Helper()
	a := b.handlerFor(t, `{"subnet": "10.1.2.0/24"}`)
	b.del(t, a, request1("one"))
	b.add(t, a, request1("two"))
	b.del(t, a, request1("one"))
	b.del(t, a, requestFor("two", "eth7"))
	expect(t, b.leases(t), "10.1.2.2 two eth0")
}

func scenarioQuiet(t *testing.T, b *bed) {
	t.Helper()
	a := b.handlerFor(t, `{"subnet": "10.1.2.0/24"}`)
	b.add(t, a, request1("one"))
	b.del(t, a, request1("one"))
	if b.log.Len() > 0 {
		t.Errorf("logged %q", b.log)
	}
	expect(t, b.files(t), "lock ")
}

func scenarioRequested(t *testing.T, b *bed) {
	t.Helper()
	a := b.handlerFor(t, `{"subnet": "10.1.2.0/24"}`)
	expect(t, b.add(t, a, withArgs(t, request1("one"), "IP=10.1.2.88")), "10.1.2.88")
	expect(t, b.add(t, a, withArgs(t, request1("two"), "IgnoreUnknown=1;IP=10.1.2.90/16;K8S=x")), "10.1.2.90")
	expect(t, b.add(t, a, request1("three")), "10.1.2.91") // the cursor follows requests too
}

func scenarioRequestedBad(t *testing.T, b *bed) {
	t.Helper()
	a := b.handlerFor(t, `{"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.10", "rangeEnd": "10.1.2.20", "exclude": ["10.1.2.15"], "gateway": "10.1.2.12"}`)
	b.add(t, a, withArgs(t, request1("one"), "IP=10.1.2.11"))
	err := b.addFails(t, a, withArgs(t, request1("two"), "IP=10.1.2.11"))
	if !errors.Is(err, store.ErrTaken) || !strings.Contains(err.Error(), `CNI_ARGS: IP: address 10.1.2.11: taken by "eth0" of container "one"`) {
		t.Error(err)
	}
	for args, want := range map[string]string{
		"IP=10.1.2.9":  "CNI_ARGS: IP 10.1.2.9: is in no range: 10.1.2.0/24 has only 10.1.2.10-10.1.2.20",
		"IP=10.1.2.21": "CNI_ARGS: IP 10.1.2.21: is in no range: 10.1.2.0/24 has only 10.1.2.10-10.1.2.20",
		"IP=10.1.2.12": "CNI_ARGS: IP 10.1.2.12: is the gateway of 10.1.2.0/24",
		"IP=10.1.2.15": "CNI_ARGS: IP 10.1.2.15: is excluded from 10.1.2.0/24",
		"IP=nonsense":  `CNI_ARGS: IP: "nonsense" is neither an IP address nor a CIDR`,
	} {
		err := b.addFails(t, a, withArgs(t, request1("two"), args))
		if !errors.Is(err, roles.ErrEnv) || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v", args, err)
		}
	}
}

func scenarioSeveral(t *testing.T, b *bed) {
	t.Helper()
	a := b.handlerFor(t, `{"ranges": [[{"subnet": "10.1.0.0/30"}, {"subnet": "10.1.4.0/30"}, {"subnet": "10.1.8.0/31"}]]}`)
	expect(t, b.add(t, a, request1("one")), "10.1.0.2")
	expect(t, b.add(t, a, request1("two")), "10.1.4.2")
	expect(t, b.add(t, a, request1("three")), "10.1.8.1")
	b.addFails(t, a, request1("four"))
}

func scenarioFamilies(t *testing.T, b *bed) {
	t.Helper()
	a := b.handlerFor(t, `{"ranges": [[{"subnet": "10.1.0.0/29"}], [{"subnet": "2001:db8::/126"}]]}`)
	expect(t, b.add(t, a, request1("one")), "10.1.0.2", "2001:db8::2")
	expect(t, b.add(t, a, request1("two")), "10.1.0.3", "2001:db8::3")
	// The IPv4 address must be released if there is no IPv6 address.
	b.addFails(t, a, request1("three"))
	expect(t, b.leases(t), "10.1.0.2 one eth0", "10.1.0.3 two eth0", "2001:db8::2 one eth0", "2001:db8::3 two eth0")
}

func scenarioUnused(t *testing.T, b *bed) {
	t.Helper()
	a := b.handlerFor(t, `{"subnet": "10.1.2.0/24"}`, `"runtimeConfig": {"ips": ["10.1.2.9", "10.1.2.10", "192.0.2.1"]}`)
	err := b.addFails(t, a, request1("one"))
	want := "runtimeConfig.ips[1]: 10.1.2.10 cannot be served: range set 0 (10.1.2.0/24) gives one address, and 10.1.2.9 is requested of it already\n" +
		"runtimeConfig.ips[2]: 192.0.2.1 is in no range"
	if !errors.Is(err, roles.ErrConf) || err.Error() != want {
		t.Errorf("got  %v\nwant %v", err, want)
	}
	expect(t, b.leases(t))
}

func scenarioWrap(t *testing.T, b *bed) {
	t.Helper()
	a := b.handlerFor(t, `{"subnet": "10.1.2.0/29"}`) // .2 to .6
	for i, want := range []string{"10.1.2.2", "10.1.2.3", "10.1.2.4", "10.1.2.5", "10.1.2.6"} {
		expect(t, b.add(t, a, request1(fmt.Sprint("c", i))), want)
	}
	// A released address is allocated last.
	b.del(t, a, request1("c4"))
	b.del(t, a, request1("c1"))
	expect(t, b.add(t, a, request1("d0")), "10.1.2.3")
	b.del(t, a, request1("d0"))
	expect(t, b.add(t, a, request1("d1")), "10.1.2.6")
	expect(t, b.add(t, a, request1("d2")), "10.1.2.3")
	b.del(t, a, request1("d2"))
	expect(t, b.add(t, a, request1("d3")), "10.1.2.3") // the only free one, although it was released last
	b.del(t, a, request1("c0"))
	expect(t, b.add(t, a, request1("d4")), "10.1.2.2")
}

func scenarioNoBroadcast(t *testing.T, b *bed) {
	t.Helper()
	a := b.handlerFor(t, `{"subnet": "192.168.1.0/29"}`)
	for i := range 5 {
		b.add(t, a, request1(fmt.Sprint("c", i)))
	}
	b.addFails(t, a, request1("c5"))
	b.addFails(t, a, withArgs(t, request1("c5"), "IP=192.168.1.7"))
	b.addFails(t, a, withArgs(t, request1("c5"), "IP=192.168.1.0"))
	b.addFails(t, a, withArgs(t, request1("c5"), "IP=192.168.1.1"))
}

func scenarioExhaustion(t *testing.T, b *bed) {
	t.Helper()
	a := b.handlerFor(t, `{"ranges": [[{"subnet": "192.168.1.0/29"}], [{"subnet": "2001:db8::/64"}]]}`)
	for i := range 5 {
		b.add(t, a, request1(fmt.Sprint("c", i)))
	}
	b.del(t, a, request1("c0"))
	b.add(t, a, request1("c5"))
	err := b.addFails(t, a, request1("c6"))
	text := strings.Split(fmt.Sprint(err), " since ")
	want := `no addresses left: network "net", range set 0 (192.168.1.0/29): 5 addresses, 5 used; held longest: 192.168.1.3 by "c1" "eth0"`
	if !errors.Is(err, roles.ErrExhausted) || text[0] != want || len(text) != 4 {
		t.Errorf("got  %v\nwant %v", err, want)
	}
	if !strings.HasSuffix(text[1], `; 192.168.1.4 by "c2" "eth0"`) || !strings.HasSuffix(text[2], `; 192.168.1.5 by "c3" "eth0"`) {
		t.Errorf("not the oldest: %v", err)
	}
}

func scenarioLast(t *testing.T, b *bed) {
	t.Helper()
	a := b.handlerFor(t, `{"ranges": [[{"subnet": "10.1.2.0/30"}, {"subnet": "10.1.3.0/29"}]]}`)
	expect(t, b.add(t, a, request1("one")), "10.1.2.2")
	expect(t, b.add(t, a, request1("two")), "10.1.3.2") // after the last of the first range
	b.del(t, a, request1("two"))
	a = b.handlerFor(t, `{"subnet": "10.1.9.0/29"}`)
	expect(t, b.add(t, a, request1("three")), "10.1.9.2") // the last one is of another configuration
}

func scenarioMultiSet(t *testing.T, b *bed) {
	t.Helper()
	a := b.handlerFor(t, `{"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.2.0.0/24"}], [{"subnet": "10.3.0.0/24"}]]}`,
		`"args": {"cni": {"ips": ["10.3.0.7/24", "10.1.0.9", "10.1.0.9/8"]}}`)
	expect(t, b.add(t, a, request1("one")), "10.1.0.9", "10.2.0.2", "10.3.0.7")
}

func TestRequestedPrecedence(t *testing.T) {
	b := newBed(t)
	const (
		capability = `"runtimeConfig": {"ips": ["10.1.2.30"]}`
		args       = `"args": {"cni": {"ips": ["10.1.2.20"]}}`
	)
	for i, c := range []struct {
		more []string
		env  string
		want string
	}{
		{nil, "IP=10.1.2.10", "10.1.2.10"},
		{[]string{args}, "IP=10.1.2.10", "10.1.2.20"},
		{[]string{capability, args}, "IP=10.1.2.10", "10.1.2.30"},
		{[]string{capability}, "", "10.1.2.30"},
		{[]string{args}, "", "10.1.2.20"},
		{[]string{args}, "IP=no-address-but-not-read", "10.1.2.20"},
	} {
		a := b.handlerFor(t, `{"subnet": "10.1.2.0/24"}`, c.more...)
		req := withArgs(t, request1(fmt.Sprint("c", i)), c.env)
		expect(t, b.add(t, a, req), c.want)
		b.del(t, a, req)
	}
}

func TestHugeRanges(t *testing.T) {
	b := newBed(t)
	a := b.handlerFor(t, `{"ranges": [[{"subnet": "2001:db8::/32", "exclude": ["2001:db8::/33"]}], [{"subnet": "10.0.0.0/8"}]]}`)
	expect(t, b.add(t, a, request1("one")), "2001:db8:8000::", "10.0.0.2")
	expect(t, b.add(t, a, request1("two")), "2001:db8:8000::1", "10.0.0.3")
	b.del(t, a, request1("one"))
	last := "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff"
	expect(t, b.add(t, a, withArgs(t, request1("end"), "IP="+last)), last, "10.0.0.4")
	expect(t, b.add(t, a, request1("round")), "2001:db8:8000::", "10.0.0.5") // the last address, then the first
	all := b.handlerFor(t, `{"ranges": [[{"subnet": "2000::/3", "rangeStart": "2000::2", "gateway": "fe80::1"}]]}`)
	expect(t, b.add(t, all, request1("three")), "2001:db8:8000::2")
}

func TestDelUnderAnotherConfiguration(t *testing.T) {
	b := newBed(t)
	old := b.handlerFor(t, `{"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "2001:db8::/64"}]]}`)
	b.add(t, old, request1("one"))
	now, err := newHandler([]byte(netConf(`{"subnet": "10.9.0.0/24", "dataDir": "/nowhere"}`)))
	if err != nil {
		t.Fatal(err)
	}
	b.del(t, now, request1("one"))
	expect(t, b.leases(t))
}

func TestDelIsOfOneNetwork(t *testing.T) {
	b := newBed(t)
	a := b.handlerFor(t, `{"subnet": "10.1.0.0/24"}`)
	other := request1("one")
	other.Network = "other"
	expect(t, b.add(t, a, request1("one")), "10.1.0.2")
	expect(t, b.add(t, a, other), "10.1.0.2") // networks of different names have separate pools
	b.del(t, a, other)
	expect(t, b.leases(t), "10.1.0.2 one eth0")
}

func TestRangesOnlyFromTheRuntime(t *testing.T) {
	b := newBed(t)
	a := b.handlerFor(t, `{"routes": []}`, `"capabilities": {"ipRanges": true}`)
	err := b.addFails(t, a, request1("one"))
	if !errors.Is(err, roles.ErrConf) {
		t.Error(err)
	}
	b.del(t, a, request1("one"))
	if err := a.Status(context.Background(), b.Host, request1("")); err != nil {
		t.Error(err)
	}
}
