package cloud

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/store"
)

func addrs(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, t := range texts {
		out = append(out, netip.MustParseAddr(t))
	}
	return out
}

func TestConfFaults(t *testing.T) {
	conf := func(ipam string) string { return `{"cniVersion": "1.1.0", "name": "net", "ipam": ` + ipam + `}` }
	rolestest.CheckFaults(t, Role(), []rolestest.FaultyConf{
		{Name: "none", Conf: `{"name": "net"}`, Paths: []string{"ipam"}},
		{Name: "smallest", Conf: conf(`{"type": "cloud-ipam"}`)},
		{Name: "azure's", Conf: conf(`{"type": "azure-vnet-ipam"}`)},
		{Name: "azure's keys", Conf: conf(`{"type": "azure-vnet-ipam", "mode": "v4overlay", "environment": "mas", "addressSpace": "local", "subnet": "10.240.0.0/16", "ipAddress": "10.240.0.9", "queryInterval": "10"}`)},
		{Name: "own keys", Conf: conf(`{"type": "cloud-ipam", "provider": "azure", "url": "http://169.254.169.254", "cooldown": "1m", "nic": "eth1", "family": "dual", "sticky": {}}`)},
		{
			Name: "all wrong",
			Conf: `{"name": "net", "ipam": {"type": "cloud-ipam", "provider": "nimbus", "url": "ftp://x", "environment": "lab", "queryInterval": 0, "cooldown": "never",
				"family": "ipx", "addressSpace": "global", "subnet": "10.240.0.1/16", "ipAddress": "ten", "routes": [{}], "sticky": {"key": "x"}, "requests": {"mode": "maybe"}},
				"runtimeConfig": {"ips": ["x"]}, "args": {"cni": {"ips": ["y"]}}}`,
			Paths: []string{
				"ipam.routes[0].dst", "ipam.environment", "ipam.provider", "ipam.url", "ipam.queryInterval", "ipam.cooldown", "ipam.family",
				"ipam.addressSpace", "ipam.subnet", "runtimeConfig.ips[0]", "args.cni.ips[0]", "ipam.ipAddress", "ipam.requests.mode", "ipam.sticky.key",
			},
		},
		{Name: "no such environment", Conf: conf(`{"environment": "ipv6NodeIpam"}`), Paths: []string{"ipam.environment"}},
		{Name: "two providers", Conf: conf(`{"environment": "azure", "provider": "aws"}`), Paths: []string{"ipam.environment"}},
		{Name: "file of a cloud", Conf: conf(`{"provider": "aws", "file": "/x"}`), Paths: []string{"ipam.file"}},
		{Name: "relative file", Conf: conf(`{"provider": "file", "file": "x"}`), Paths: []string{"ipam.file"}},
		{Name: "URL of a file", Conf: conf(`{"environment": "fileIpam", "url": "http://10.0.0.1"}`), Paths: []string{"ipam.url"}},
		{Name: "subnet of the other family", Conf: conf(`{"subnet": "2001:db8::/64"}`), Paths: []string{"ipam.subnet"}},
	})
}

func TestConfDefaults(t *testing.T) {
	for conf, want := range map[string]string{
		`{"name": "n", "ipam": {"type": "cloud-ipam"}}`:                                                              "auto",
		`{"name": "n", "ipam": {"type": "azure-vnet-ipam"}}`:                                                         "azure http://168.63.129.16",
		`{"name": "n", "ipam": {"type": "azure-vnet-ipam", "environment": "fileIpam"}}`:                              "file /etc/kubernetes/interfaces.json",
		`{"name": "n", "ipam": {"type": "azure-vnet-ipam", "url": "http://127.0.0.1:9/"}}`:                           "azure http://127.0.0.1:9",
		`{"name": "n", "ipam": {"type": "azure-vnet-ipam", "provider": "azure-imds", "queryInterval": "100000000"}}`: "!",
	} {
		a, err := newHandler([]byte(conf))
		if want == "!" {
			if err == nil {
				t.Errorf("%s: no fault", conf)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		expect(t, a.feed.Source(), want)
		if a.cooldown != 30*time.Second || a.feed.Interval != 10*time.Second {
			t.Errorf("%s: cool-down %v, interval %v", conf, a.cooldown, a.feed.Interval)
		}
	}
}

// TestPlanLeavesServicesOut: no pod gets the address of the metadata service, the
// cloud's DNS server or another subnet's gateway, even if the reply has it.
func TestPlanLeavesServicesOut(t *testing.T) {
	n := nic(macA, true, "168.63.129.0/24", "168.63.129.16", "168.63.129.17", "168.63.129.18", "168.63.129.32/30")
	n.DNS = addrs("168.63.129.17", "168.63.129.33")
	other := nic(macB, false, "10.0.0.0/24", "10.0.0.9")
	other.Subnets[0].Gateway = netip.MustParseAddr("168.63.129.34")
	for name, provider := range map[string]string{"azure http://168.63.129.16": "", "azure-imds http://168.63.129.16": "", "auto": "azure"} {
		a, err := newHandler([]byte(`{"name": "n", "ipam": {"type": "cloud-ipam", "subnet": "168.63.129.0/24"}}`))
		if err != nil {
			t.Fatal(err)
		}
		p, why := a.planOf(&store.CloudSource{Name: name, Provider: provider, NICs: []store.CloudNIC{n, other}}, nil)
		expect(t, fmt.Sprint(p.Sets[0][0].Free, why), "[168.63.129.18-168.63.129.18 168.63.129.32-168.63.129.32 168.63.129.35-168.63.129.35]")
	}
}

// TestUnknownSubnet: the plan reports a configured subnet that the cloud does not have.
func TestUnknownSubnet(t *testing.T) {
	a, err := newHandler([]byte(`{"name": "n", "ipam": {"type": "cloud-ipam", "subnet": "10.0.0.0/8"}}`))
	if err != nil {
		t.Fatal(err)
	}
	_, why := a.planOf(&store.CloudSource{Name: "x", NICs: []store.CloudNIC{nic(macA, true, "10.240.0.0/16", "10.240.0.36")}}, nil)
	expect(t, why, "; it has no subnet 10.0.0.0/8, which ipam.subnet requires")
}

// FuzzConf: no configuration causes a panic, and a valid one assigns only addresses of
// the cloud.
func FuzzConf(f *testing.F) {
	for _, seed := range []string{
		`{"name": "n", "ipam": {"type": "cloud-ipam"}}`,
		`{"name": "n", "ipam": {"type": "azure-vnet-ipam", "environment": "azure", "subnet": "10.240.0.0/16", "queryInterval": "10"}}`,
		`{"name": "n", "master": "eth0", "ipam": {"family": "dual", "cooldown": 0, "sticky": {"key": "mac"}, "requests": {"mode": "prefer"}}, "runtimeConfig": {"ips": ["10.240.0.36/8"]}}`,
		`{"name": "n", "ipam": {"nic": "02:00:00:00:00:0a", "routes": [{"dst": "::/0"}], "dns": {"nameservers": ["x"]}}}`,
	} {
		f.Add([]byte(seed))
	}
	n := nic(macA, true, "10.240.0.0/16", "10.240.0.36", "10.240.0.64/28")
	n.Subnets = append(n.Subnets, nic("", true, "2001:db8::/64", "2001:db8::9").Subnets...)
	source := &store.CloudSource{Name: "x", NICs: []store.CloudNIC{n}}
	links := []netops.LinkInfo{{Name: "eth0", MAC: macA, Addresses: []netip.Prefix{netip.MustParsePrefix("10.240.0.65/16")}}}
	f.Fuzz(func(t *testing.T, conf []byte) {
		a, err := newHandler(conf)
		if err != nil {
			if err.Error() == "" {
				t.Error("an error without a text")
			}
			return
		}
		p, _ := a.planOf(source, links)
		for _, s := range p.Sets {
			for _, r := range s {
				for _, i := range r.Free {
					if strings.Contains(i.String(), "10.240.0.65-") || !r.Allows(i.Lo) || r.NIC != macA {
						t.Errorf("range %+v", r)
					}
				}
			}
		}
		if _, err := p.AddressRequests(request("a")); err != nil && err.Error() == "" {
			t.Error("an error without a text")
		}
	})
}
