package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cnibox/cnibox/test/cloudsim"
	"github.com/cnibox/cnibox/test/internal/stage"
)

// The node and its surroundings.
const (
	nodeMAC    = "00:0d:3a:51:c4:90"
	nodeAddr   = "10.240.0.35"
	otherMAC   = "00:0d:3a:51:c4:04"
	otherAddr  = "10.240.0.4"
	gateway    = "10.240.0.1"
	wireserver = "168.63.129.16"
	// fabricMAC is the MAC in Azure's answer to every ARP request.
	fabricMAC = "12:34:56:78:9a:bc"
	// pods is the number of the node's addresses for pods.
	pods = 30
)

// cloud builds Azure's network with the node and another machine. Azure accepts frames of the interface's own MAC only, and answers
// ARP for every address itself.
func (d *demo) cloud() error {
	script := `
netns add fabric
netns add node
netns add other
-n fabric link set lo up
-n node link set lo up
-n other link set lo up
-n fabric link add f0 address ` + fabricMAC + ` type veth peer name eth0 address ` + nodeMAC + ` netns node
-n fabric link add f1 address ` + fabricMAC + ` type veth peer name eth0 address ` + otherMAC + ` netns other
-n fabric address add ` + wireserver + `/32 dev lo
-n fabric address add ` + gateway + `/32 dev lo
-n fabric link set f0 up
-n fabric link set f1 up
-n fabric route add 10.240.0.32/27 dev f0 src ` + gateway + `
-n fabric route add 10.240.0.64/31 dev f0 src ` + gateway + `
-n fabric route add ` + otherAddr + ` dev f1 src ` + gateway + `
-n fabric neigh add ` + otherAddr + ` lladdr ` + otherMAC + ` dev f1
-n node address add ` + nodeAddr + `/16 dev eth0
-n node link set eth0 up
-n node route add default via ` + gateway + `
-n other address add ` + otherAddr + `/16 dev eth0
-n other link set eth0 up
-n other route add default via ` + gateway
	for i := range pods + 1 {
		script += fmt.Sprintf("\n-n fabric neigh add 10.240.0.%d lladdr %s dev f0", 35+i, nodeMAC)
	}
	for line := range strings.Lines(strings.TrimSpace(script)) {
		if _, err := d.Output("", "ip", strings.Fields(line)...); err != nil {
			return err
		}
	}
	if err := stage.InNetns("fabric", fabricSettings); err != nil {
		return err
	}
	const filter = `table netdev fabric {
	counter refused { }
	chain in {
		type filter hook ingress device "f0" priority filter;
		ether saddr != ` + nodeMAC + ` counter name refused drop
		arp saddr ether != ` + nodeMAC + ` counter name refused drop
	}
}
`
	if err := os.MkdirAll("/run/fabric", 0o755); err != nil {
		return err
	}
	if err := os.WriteFile("/run/fabric/filter.nft", []byte(filter), 0o600); err != nil {
		return err
	}
	if _, err := d.Output("fabric", "nft", "-f", "/run/fabric/filter.nft"); err != nil {
		return err
	}
	return d.Until("eth0", func() (bool, error) {
		out, err := d.Output("node", "ip", "-br", "address", "show", "dev", "eth0", "-tentative")
		return strings.Contains(string(out), " UP ") && strings.Contains(string(out), "fe80::"), err
	})
}

// fabricSettings turn the namespace into a router that answers ARP for the addresses behind it without delay.
func fabricSettings() error {
	var errs []error
	for path, value := range map[string]string{
		"ipv4/ip_forward": "1", "ipv4/conf/f0/proxy_arp": "1", "ipv4/conf/f1/proxy_arp": "1",
		"ipv4/neigh/f0/proxy_delay": "0", "ipv4/neigh/f1/proxy_delay": "0",
		"ipv4/conf/all/send_redirects": "0", "ipv4/conf/f0/send_redirects": "0",
	} {
		errs = append(errs, os.WriteFile("/proc/sys/net/"+path, []byte(value), 0))
	}
	return errors.Join(errs...)
}

// simulate starts Azure's metadata service in the fabric. The caller closes it.
func (d *demo) simulate() (sim *cloudsim.Sim, err error) {
	err = stage.InNetns("fabric", func() (err error) {
		sim, err = cloudsim.Start(d.Ctx, cloudsim.Options{Providers: []string{"azure"}})
		return err
	})
	return sim, err
}
