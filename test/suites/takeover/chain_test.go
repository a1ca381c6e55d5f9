package takeover

import (
	"testing"

	"github.com/cnibox/cnibox/roles/all"
)

// chains are lists of plugins as podman and nerdctl write them, with the values that a runtime fills in, for each firewall backend
// of the reference.
func chains() map[string][]object {
	bridge := func(backend string) object {
		return object{"type": "bridge", "bridge": "br0", "isGateway": true, "ipMasq": true, "ipMasqBackend": backend, "hairpinMode": true}
	}
	portmap := func(backend string) object {
		return object{"type": "portmap", "backend": backend, "runtimeConfig": object{"portMappings": []object{
			{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
			{"hostPort": 8081, "containerPort": 81, "protocol": "udp", "hostIP": "127.0.0.1"},
		}}}
	}
	firewall := func(policy string) object {
		return object{"type": "firewall", "backend": "iptables", "ingressPolicy": policy}
	}
	tuning := object{"type": "tuning", "mtu": 1400, "promisc": true, "mac": "02:00:00:00:00:77", "sysctl": object{"net.ipv4.conf.IFNAME.arp_filter": "1"}}
	bandwidth := object{"type": "bandwidth", "ingressRate": 8000000, "ingressBurst": 800000, "egressRate": 8000000, "egressBurst": 800000}
	return map[string][]object{
		"iptables": {bridge("iptables"), portmap("iptables"), firewall("open"), tuning, bandwidth},
		"nftables": {bridge("nftables"), portmap("nftables"), firewall("same-bridge"), tuning, bandwidth},
	}
}

// TestChains does the same as TestInterfaces with all chained plugins in the list. Another container of the reference keeps
// everything.
func TestChains(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full runs it")
	}
	for name, list := range chains() {
		for _, w := range everyWay() {
			t.Run(name+"/"+w.name, func(t *testing.T) { takeOverChain(t, list, w) })
		}
	}
}

func takeOverChain(t *testing.T, list []object, w detachment) {
	n := newNode(t, known(list)...)
	n.list[0]["ipam"] = n.hostLocal("bridge")
	prepare(t, n)
	before := n.state()
	other := n.container(stays)
	other.port = 8090
	other.add(theirs)
	n.detachOne(t, w)
	other.check(theirs)
	other.check(ours)
	other.del(ours, other.ns.Path())
	n.same(before, "at the end")
}

// known omits the plugins for which cnibox has no role.
func known(list []object) []object {
	var out []object
	table := all.Table()
	for _, o := range list {
		typ, _ := o["type"].(string)
		if _, ok := table.Lookup(typ); ok {
			out = append(out, o)
		}
	}
	return out
}
