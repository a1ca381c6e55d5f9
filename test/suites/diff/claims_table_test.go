package diff

import (
	"errors"
	"fmt"
)

// groupGateway makes ADD fail after everything but the routes is made: a gateway cannot have a multicast address.
const groupGateway = `"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]],"routes":[{"dst":"198.51.100.0/24","gw":"224.0.0.1"}]}`

const oneAddress = `"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24","rangeStart":"10.1.0.5","rangeEnd":"10.1.0.5"}]]}`

func allClaims() []claim {
	masq := `{"type":"bridge","isGateway":true,"ipMasq":true,` + poolTo4 + `}`
	claims := []claim{
		leakedMasquerade("bridge/masquerade-iptables", masq, netns("c1")),
		leakedMasquerade("bridge/masquerade-nftables", `{"type":"bridge","isGateway":true,"ipMasq":true,"ipMasqBackend":"nftables",`+poolTo4+`}`, netns("c1")),
		leakedMasquerade("ptp/masquerade", `{"type":"ptp","ipMasq":true,`+poolTo4+`}`, netns("c1")),
		leakedMasquerade("bridge/masquerade-no-netns", masq, ""),
		{
			name:      "bridge/two-attachments",
			reference: "Two interfaces of one container on one network share a masquerade chain. DEL of one interface empties it for both, and fails.",
			ours:      "Names of an attachment's objects include the interface.",
			show: func(h *host) error {
				if _, err := h.attach(masq, "c1", "eth0"); err != nil {
					return err
				}
				second, err := h.attach(`{"type":"bridge","isGateway":true,"ipMasq":true,`+pool4+`}`, "c1", "net1")
				if err != nil {
					return err
				}
				if err := second.must("DEL"); err != nil {
					return err
				}
				return h.answers("c1", "192.0.2.254")
			},
		},
		{
			name:      "bridge/flushed-ruleset",
			reference: "After `nft flush ruleset` running containers have no masquerading until they are restarted, and CHECK does not detect it.",
			ours:      "CHECK detects it, and the next ADD, GC or STATUS on the node restores every network's entries.",
			show: func(h *host) error {
				first, err := h.attach(masq, "c1", "eth0")
				if err != nil {
					return err
				}
				if _, err := h.run("nft", "flush", "ruleset"); err != nil {
					return err
				}
				if err := first.mustFail("CHECK", "masquerading is gone"); err != nil {
					return err
				}
				if _, err := h.attach(masq, "c2", "eth0"); err != nil {
					return err
				}
				return h.answers("c1", "192.0.2.254")
			},
		},
		{
			name:      "portmap/node-port",
			reference: "A container takes a port that a Service of type NodePort uses.",
			ours:      "ADD refuses such a port.",
			setup: "nft add table ip kube-proxy\nnft add chain ip kube-proxy external\n" +
				"nft add map ip kube-proxy service-nodeports { type inet_proto . inet_service : verdict ; }\n" +
				"nft add element ip kube-proxy service-nodeports { tcp . 30080 : goto external }\n",
			show: func(h *host) error {
				first, err := h.attach(masq, "c1", "eth0")
				if err != nil {
					return err
				}
				ports, err := h.attachment(`{"type":"portmap","runtimeConfig":{"portMappings":[{"hostPort":30080,"containerPort":80,"protocol":"tcp"}]}}`, "c1", "eth0")
				if err != nil {
					return err
				}
				ports.conf["prevResult"] = first.conf["prevResult"]
				return ports.mustFail("ADD", "port 30080 is a NodePort")
			},
		},
		{
			name:      "portmap/listener",
			reference: "A pod takes a port on which a process of the node listens, such as the kubelet's.",
			ours:      "ADD refuses such a port for a pod and names the process, or leaves the single address to it on which it listens. Other containers take it, as with the reference. `refuseListeners` chooses either way.",
			show: func(h *host) error {
				first, err := h.attach(masq, "c1", "eth0")
				if err == nil {
					err = h.serve("", "10250")
				}
				if err != nil {
					return err
				}
				ports, err := h.attachment(`{"type":"portmap","runtimeConfig":{"portMappings":[{"hostPort":10250,"containerPort":80,"protocol":"tcp"}]}}`, "c1", "eth0")
				if err != nil {
					return err
				}
				ports.conf["prevResult"], ports.args = first.conf["prevResult"], "IgnoreUnknown=1;K8S_POD_NAME=c1"
				return ports.mustFail("ADD", "a process listens on port 10250")
			},
		},
		{
			name:      "portmap/stub",
			reference: "A container whose port is 53 also gets the node's own queries to a stub resolver on 127.0.0.53.",
			ours:      "A process that listens on a loopback address keeps the connections to that address, and the container gets the others.",
			show: func(h *host) error {
				first, err := h.attach(masq, "c1", "eth0")
				if err == nil {
					err = errors.Join(h.serve("c1", "53"), h.serveAt("", "127.0.0.53:53"))
				}
				if err != nil {
					return err
				}
				ports, err := h.attachment(`{"type":"portmap","runtimeConfig":{"portMappings":[{"hostPort":53,"containerPort":53,"protocol":"tcp"}]}}`, "c1", "eth0")
				if err != nil {
					return err
				}
				ports.conf["prevResult"] = first.conf["prevResult"]
				if _, err := ports.call("ADD"); err != nil {
					return err
				}
				if have := h.dial("", "192.0.2.1:53"); have != "answer of c1" {
					return fmt.Errorf("the node's address: %s", have)
				}
				if have := h.dial("", "127.0.0.53:53"); have != "answer of " {
					return fault("127.0.0.53: %s", have)
				}
				return nil
			},
		},
		{
			name:      "bridge/check-gateway",
			reference: "CHECK does not compare the bridge's address, which is the container's gateway.",
			ours:      "CHECK compares everything that ADD made, also on the host, and the MTUs of both ends. It reports an MTU that the reference's tuning set behind an interface of cnibox, because that result does not have it: use cnibox's tuning there, too.",
			show: func(h *host) error {
				a, err := h.attach(masq, "c1", "eth0")
				if err != nil {
					return err
				}
				if _, err := h.run("ip", "addr", "flush", "dev", "cni0"); err != nil {
					return err
				}
				return a.mustFail("CHECK", "the gateway's address is gone")
			},
		},
		{
			name:      "bridge/tentative-gateway",
			reference: "The gateway's IPv6 address is tentative for one or two seconds after ADD and does not answer.",
			ours:      "It answers when ADD returns.",
			said:      true,
			show: func(h *host) error {
				if _, err := h.attach(`{"type":"bridge","isGateway":true,`+pool6+`}`, "c1", "eth0"); err != nil {
					return err
				}
				return h.without("2001:db8:1::1", "ip", "addr", "show", "dev", "cni0", "tentative")
			},
		},
		{
			name:      "bridge/gc",
			reference: "GC does nothing. host-local has one from v1.10.0 on, which no interface plugin calls.",
			ours:      "GC removes interfaces, addresses, nftables elements and records that the runtime does not list.",
			show: func(h *host) error {
				a, err := h.attach(masq, "c1", "eth0")
				if err != nil {
					return err
				}
				gc, err := h.attachment(masq, "c1", "eth0")
				if err != nil {
					return err
				}
				gc.conf["cni.dev/valid-attachments"] = []any{}
				if err := gc.must("GC"); err != nil {
					return err
				}
				if err := h.released("GC"); err != nil {
					return err
				}
				return h.without(a.ifname, "ip", "-n", "c1", "link")
			},
		},
		{
			name:      "host-local/gc-without-list",
			reference: "From v1.10.0 on its GC releases the addresses of all containers if the runtime sends no list.",
			ours:      "GC without a list removes nothing, because the runtime has not said what runs. An empty list, or null, means that nothing does.",
			needs:     since110,
			show: func(h *host) error {
				if _, err := h.attach(`{"type":"bridge",`+pool4+`}`, "c1", "eth0"); err != nil {
					return err
				}
				gc, err := h.attachment(`{"type":"host-local",`+pool4+`}`, "c1", "eth0")
				if err != nil {
					return err
				}
				if err := gc.must("GC"); err != nil {
					return err
				}
				f := facts{}
				if err := h.leases(f, "GC"); err != nil {
					return err
				}
				if len(f) == 0 {
					return fault("the lease of a running container is gone")
				}
				return nil
			},
		},
		{
			name:      "host-local/status",
			reference: "STATUS succeeds when no address is left.",
			ours:      "STATUS returns code 50, so the runtime can report that the node is not ready.",
			show: func(h *host) error {
				a, err := h.attach(`{"type":"bridge",`+oneAddress+`}`, "c1", "eth0")
				if err != nil {
					return err
				}
				return a.mustFail("STATUS", "no address is left")
			},
		},
		{
			name:      "host-local/reboot",
			reference: "Addresses of containers that a reboot ended without DEL are never released.",
			ours:      "The first ADD after the boot removes files from before it.",
			show: func(h *host) error {
				a, err := h.attachment(`{"type":"bridge",`+oneAddress+`}`, "c1", "eth0")
				if err != nil {
					return err
				}
				dir := fmt.Sprint("/var/lib/cni/networks/", a.conf["name"])
				err = h.script("mkdir -p " + dir + "\ntouch " + dir + "/lock\ncp /etc/hostname " + dir + "/10.1.0.5\ntouch -d 2001-01-01 " + dir + "/10.1.0.5")
				if err != nil {
					return err
				}
				return a.must("ADD")
			},
		},
		{
			name:      "host-local/dead-owners",
			reference: "Addresses of containers that ended without DEL are never released.",
			ours:      "When no address is left, those of containers that are gone are released.",
			show: func(h *host) error {
				if _, err := h.attach(`{"type":"bridge",`+oneAddress+`}`, "c1", "eth0"); err != nil {
					return err
				}
				if err := h.script("ip -n c1 link del eth0\nip netns del c1"); err != nil {
					return err
				}
				a, err := h.attachment(`{"type":"bridge",`+oneAddress+`}`, "c2", "eth0")
				if err != nil {
					return err
				}
				return a.must("ADD")
			},
		},
	}
	claims = append(claims, delClaims()...)
	claims = append(claims, resultClaims()...)
	for _, role := range []string{"bridge", "ptp", "macvlan", "tap"} {
		conf := fmt.Sprintf(`{"type":%q,"master":"uplink",%s}`, role, groupGateway)
		claims = append(claims, failedAdd(role, conf))
	}
	return claims
}

// delClaims are about DEL after an object of ADD was removed.
func delClaims() []claim {
	const device = "ip link add hd0 type veth peer name hd1"
	// del is DEL after some commands, and a second DEL from a runtime that has lost the result.
	del := func(conf, gone string) func(*host) error {
		return func(h *host) error {
			a, err := h.attach(conf, "c1", "eth0")
			if err == nil {
				err = h.script(gone)
			}
			if err != nil {
				return err
			}
			delete(a.conf, "prevResult")
			if err := a.must("DEL"); err != nil {
				return err
			}
			if err := h.released("DEL"); err != nil {
				return err
			}
			return a.must("DEL")
		}
	}
	return []claim{
		{
			name:      "host-device/del-twice",
			reference: "A second DEL fails.",
			ours:      "Every DEL succeeds.",
			said:      true,
			setup:     device, show: del(`{"type":"host-device","device":"hd0",`+pool4+`}`, ""),
		},
		{
			name:      "host-device/del-without-netns",
			said:      true,
			reference: "DEL always fails when the namespace is gone, and the address is not released.",
			ours:      "DEL succeeds and releases the address.",
			setup:     device, show: del(`{"type":"host-device","device":"hd0",`+pool4+`}`, "ip netns del c1"),
		},
		{
			name:      "host-device/del-netns-untold",
			reference: "DEL with an empty CNI_NETNS does nothing. The device stays in the container, and the address is not released.",
			ours:      "DEL uses the namespace that ADD recorded. The device returns and the address is released.",
			setup:     device, show: func(h *host) error {
				a, err := h.attach(`{"type":"host-device","device":"hd0",`+pool4+`}`, "c1", "eth0")
				if err != nil {
					return err
				}
				a.netns = ""
				if err := a.must("DEL"); err != nil {
					return err
				}
				if err := h.released("DEL"); err != nil {
					return err
				}
				return h.without("eth0", "ip", "-n", "c1", "link")
			},
		},
		{
			name:      "vlan/del-without-master",
			reference: "DEL always fails when the master is gone, and the address is not released.",
			ours:      "DEL succeeds and releases the address.",
			needs:     needs("vlan"), show: del(`{"type":"vlan","master":"uplink","vlanId":100,`+pool4+`}`, "ip link del uplink"),
		},
		{
			name:      "ipvlan/del-without-default-route",
			reference: "DEL without master and prevResult fails when the default route is gone, and the address is not released.",
			ours:      "DEL succeeds and releases the address.",
			needs:     needs("ipvlan"), show: del(`{"type":"ipvlan",`+pool4+`}`, "ip route del default\nip -6 route del default"),
		},
	}
}

// released returns a fault if an address is in use.
func (h *host) released(when string) error {
	f := facts{}
	if err := h.leases(f, when); err != nil {
		return err
	}
	if len(f) > 0 {
		return fault("leases are left: %v", f)
	}
	return nil
}

// leakedMasquerade is DEL of a container whose namespace no longer exists.
func leakedMasquerade(name, conf, netns string) claim {
	return claim{
		name:      name,
		reference: "DEL without a namespace leaves the container's masquerade rules, which then affect the next owner of the address.",
		ours:      "DEL uses ADD's record, and needs no namespace.",
		show: func(h *host) error {
			a, err := h.attach(conf, "c1", "eth0")
			if err != nil {
				return err
			}
			if _, err := h.run("ip", "netns", "del", "c1"); err != nil {
				return err
			}
			a.netns = netns
			if err := a.must("DEL"); err != nil {
				return err
			}
			return h.without("10.1.0.2", "nft", "list", "ruleset")
		},
	}
}

// failedAdd is an ADD that fails late, then another ADD of the same container without a DEL between them.
func failedAdd(role, conf string) claim {
	return claim{
		name:      role + "/failed-add",
		reference: "An ADD that fails late leaves its interface, so the next ADD fails because the name exists.",
		ours:      "A failed ADD leaves nothing, so the next ADD can succeed.",
		said:      true,
		show: func(h *host) error {
			a, err := h.attachment(conf, "c1", "eth0")
			if err != nil {
				return err
			}
			if err := a.mustFail("ADD", "a route is impossible"); err != nil {
				return err
			}
			return h.without("eth0", "ip", "-n", "c1", "link")
		},
	}
}
