package policy_test

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cnibox/cnibox/test/await"
)

// renamedAttacks send while an administrator has renamed the pod's link on the host, which no rule knows by then.
func renamedAttacks() []attack {
	if !renamesLinks() {
		return nil
	}
	rename := func(s *scene, from, to string) {
		s.t.Helper()
		run(s.t, "ip link set "+from+" name "+to)
	}
	return []attack{
		{name: "another pod's address by a renamed link", ways: []string{"renamed", "forged-pod"}, ends: toWeb, send: func(s *scene, from, to *pod, f int, text string) {
			p := udp(s.client.at(f, 2000), to.at(f, 80), text)
			b := frame(from.mac(s.t), s.hop(from), etherType(p), p)
			rename(s, from.link(), "renamed0")
			from.sendFrame(s.t, b)
			rename(s, "renamed0", from.link())
		}},
	}
}

// renamesLinks reports whether the kernel renames a link that is up, as Linux 6.2 does.
var renamesLinks = sync.OnceValue(func() bool {
	for _, line := range []string{"add rename0 up type veth peer name rename1", "set rename0 name rename2"} {
		if exec.Command("ip", append([]string{"link"}, strings.Fields(line)...)...).Run() != nil {
			break
		}
	}
	return exec.Command("ip", "link", "del", "rename2").Run() == nil || exec.Command("ip", "link", "del", "rename0").Run() != nil
})

// TestRenamed: the rules follow the names of links, and a bridge whose packets an administrator has freed from nftables passes them to it again, both
// at once. A pod that was attached without policies is equal.
func TestRenamed(t *testing.T) {
	n := newNode(t)
	n.put("web.yaml", onlyPort80)
	web, near := n.add(n.pod(1, 3, "app=web")), n.pod(1, 2, "")
	stop := n.start()
	n.add(near)
	await.Until(t, func() bool {
		out, err := exec.Command("ip", "link", "show", "group", "6516329").Output()
		return err == nil && strings.Contains(string(out), web.link()) && strings.Contains(string(out), near.link())
	}, func() string { return "the links have no group" })
	awaitDenied(t, "10.1.0.3") // its identity is not known: it is created again
	n.del(web)
	n.add(web)
	awaitRules(t, "10.1.0.3")
	allowed, denied := n.sink(web, 80), n.sink(web, 81)
	n.flood(near, web)
	n.more(allowed, "before")
	for i, p := range []*pod{web, near} {
		name := fmt.Sprintf("web%d", i)
		t.Cleanup(func() { _ = exec.Command("ip", "link", "del", name).Run() })
		for _, line := range []string{"down", "name " + name} {
			run(t, "ip link set "+p.link()+" "+line)
		}
		run(t, "ip link set "+name+" up")
		awaitPort(t, name, p.link())
		n.more(allowed, "after the renaming")
	}
	for _, table := range []string{"iptables", "ip6tables"} {
		path, count := "/sys/class/net/br1/bridge/nf_call_"+table, 0
		await.Until(t, func() bool { // without a notification each time takes a minute
			b, err := os.ReadFile(path)
			if err == nil && b[0] == '1' {
				count++
				err = os.WriteFile(path, []byte("0"), 0)
			}
			if err != nil {
				t.Fatal(err)
			}
			return count == 4
		}, func() string { return fmt.Sprint(path, " was 1 again only ", count, " times") })
	}
	n.more(allowed, "after br_netfilter was switched off")
	n.none(denied, "at any time")
	stop()
	run(t, "ip link set web0 down")
	run(t, "ip link set web0 name "+web.link())
	run(t, "ip link set "+web.link()+" up")
	n.start()
	awaitPort(t, web.link(), "web0")
	n.more(allowed, "after the agent's start")
	n.none(denied, "at the end")
}

// awaitPort waits until the sets have one name of a pod's link, and not the other one.
func awaitPort(t *testing.T, is, not string) {
	t.Helper()
	await.Until(t, func() bool {
		have := elements(t)["pod_ports"]
		return slices.Contains(have, fmt.Sprintf("%q", is)) && !slices.Contains(have, fmt.Sprintf("%q", not))
	}, func() string { return fmt.Sprintf("pod_ports has %q, want %s", elements(t)["pod_ports"], is) })
}
