package diff

import (
	"encoding/json"
	"errors"
	"strings"
)

// resultClaims are about values from IPAM or the configuration that the reference ignores.
func resultClaims() []claim {
	var claims []claim
	for _, role := range []string{"macvlan", "tap"} {
		claims = append(claims, dnsOfIPAM(role))
	}
	for _, role := range []string{"ptp", "macvlan", "tap"} {
		claims = append(claims, routeMTU(role))
	}
	ptp := `{"type":"ptp",` + poolTo4 + `}`
	return append(claims,
		renamedDevice(),
		emptyBridge(),
		egressAddress(),
		hostAddressing(),
		netkitPair(),
		claim{
			name:      "ptp/two-attachments",
			reference: "A second interface of one container on a network cannot be made, because its routes exist.",
			ours:      "Each interface has its own routes.",
			said:      true,
			show: func(h *host) error {
				if _, err := h.attach(ptp, "c1", "eth0"); err != nil {
					return err
				}
				return h.mustAdd(ptp, "net1")
			},
		},
		claim{
			name:      "vlan/layer-2",
			reference: "vlan without ipam fails.",
			ours:      "The interface is made and up.",
			said:      true,
			needs:     needs("vlan"),
			show:      func(h *host) error { return h.mustAdd(`{"type":"vlan","master":"uplink","vlanId":100}`, "eth0") },
		},
	)
}

// mustAdd is attach where success is the claim.
func (h *host) mustAdd(conf, ifname string) error {
	a, err := h.attachment(conf, "c1", ifname)
	if err != nil {
		return err
	}
	return a.must("ADD")
}

// emptyBridge and hostAddressing are requested by users of the reference (its issues 282 and 150), which does not know the keys.
func emptyBridge() claim {
	return claim{
		name:      "bridge/empty",
		reference: "The bridge stays after its last container, with its address and route.",
		ours:      "removeEmptyBridge removes it.",
		show: func(h *host) error {
			a, err := h.attach(`{"type":"bridge","isGateway":true,"removeEmptyBridge":true,`+pool4+`}`, "c1", "eth0")
			if err != nil {
				return err
			}
			if err := a.must("DEL"); err != nil {
				return err
			}
			return h.without("cni0", "ip", "link")
		},
	}
}

// egressAddress is requested by users of podman and Kubernetes; the reference does not know the key.
func egressAddress() claim {
	return claim{
		name:      "bridge/egress-address",
		reference: "With ipMasq, packets leave with the address of the interface by which they leave.",
		ours:      "With egressAddress, which ptp has too, they leave with an address of the node that it names.",
		show: func(h *host) error {
			if _, err := h.run("ip", "addr", "add", "203.0.113.7/32", "dev", "lo"); err != nil {
				return err
			}
			if _, err := h.attach(`{"type":"bridge","isDefaultGateway":true,"ipMasq":true,"egressAddress":"203.0.113.7",`+pool4+`}`, "c1", "eth0"); err != nil {
				return err
			}
			rules, err := h.run("nft", "list", "ruleset")
			if err == nil && !strings.Contains(rules, "203.0.113.7") {
				err = fault("no rule has the egressAddress")
			}
			return err
		},
	}
}

func hostAddressing() claim {
	return claim{
		name:      "ptp/host-addressing",
		reference: "The container's address has the subnet's prefix length, so the container resolves other addresses of the subnet on the link.",
		ours:      "With hostAddressing the address has /32 or /128, and all packets go through the gateway.",
		show: func(h *host) error {
			if _, err := h.attach(`{"type":"ptp","hostAddressing":true,`+poolTo4+`}`, "c1", "eth0"); err != nil {
				return err
			}
			if err := h.without("10.1.0.2/24", "ip", "-n", "c1", "addr"); err != nil {
				return err
			}
			return h.answers("c1", "192.0.2.1")
		},
	}
}

// netkitPair shows on a kernel without netkit that the key is not ignored.
func netkitPair() claim {
	return claim{
		name:      "ptp/netkit",
		reference: "`linkType` is ignored: the interfaces are a veth pair.",
		ours:      "With `linkType` netkit they are a netkit pair, which needs no MACs and no ARP. ADD fails where the kernel has none.",
		show: func(h *host) error {
			said := &cniError{}
			_, err := h.attach(`{"type":"ptp","linkType":"netkit",`+poolTo4+`}`, "c1", "eth0")
			if errors.As(err, &said) && strings.Contains(err.Error(), "linkType: ") {
				return nil
			}
			if err != nil {
				return err
			}
			return h.without("veth", "ip", "-d", "-n", "c1", "link", "show", "eth0")
		},
	}
}

func dnsOfIPAM(role string) claim {
	const dns = `"ipam":{"type":"static","addresses":[{"address":"10.1.0.2/24","gateway":"10.1.0.1"}],"dns":{"nameservers":["10.1.0.53"]}}`
	return claim{
		name:      role + "/dns-of-ipam",
		reference: "The name servers of the IPAM result are lost.",
		ours:      "They are in the result, unless the configuration has its own dns.",
		show: func(h *host) error {
			a, err := h.attach(`{"type":"`+role+`","master":"uplink",`+dns+`}`, "c1", "eth0")
			if err != nil {
				return err
			}
			if out, _ := a.conf["prevResult"].(json.RawMessage); !strings.Contains(string(out), "10.1.0.53") {
				return fault("the result has no name server: %s", out)
			}
			return nil
		},
	}
}

func routeMTU(role string) claim {
	const routes = `"ipam":{"type":"static","addresses":[{"address":"10.1.0.2/24","gateway":"10.1.0.1"}],"routes":[{"dst":"198.51.100.0/24","mtu":1300,"advmss":1200}]}`
	return claim{
		name:      role + "/route-mtu",
		reference: "mtu and advmss of a route are in the result, but not set.",
		ours:      "They are set.",
		said:      true,
		show: func(h *host) error {
			if _, err := h.attach(`{"type":"`+role+`","master":"uplink",`+routes+`}`, "c1", "eth0"); err != nil {
				return err
			}
			out, err := h.run("ip", "-n", "c1", "route", "show", "198.51.100.0/24")
			if err == nil && (!strings.Contains(out, "mtu 1300") || !strings.Contains(out, "advmss 1200")) {
				err = fault("the route is %s", out)
			}
			return err
		},
	}
}

func renamedDevice() claim {
	return claim{
		name:      "host-device/renamed",
		reference: "DEL of a device that was renamed in the container always fails, and the device stays there.",
		ours:      "The device returns with its name.",
		setup:     "ip link add hd0 type veth peer name hd1",
		show: func(h *host) error {
			a, err := h.attach(`{"type":"host-device","device":"hd0"}`, "c1", "eth0")
			if err == nil {
				err = h.script("ip -n c1 link set eth0 down\nip -n c1 link set eth0 name net7")
			}
			if err != nil {
				return err
			}
			if err := a.must("DEL"); err != nil {
				return err
			}
			_, err = h.run("ip", "link", "show", "hd0")
			return err
		},
	}
}
