package metadata

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/store/cluster/clustertest"
	"github.com/cnibox/cnibox/test/cloudsim"
)

// The simulator of clouds and the providers were written independently. The providers
// read everything that the simulator serves and that the cloud reports.
func TestSimulator(t *testing.T) {
	clustertest.Loopback(t)
	p := netip.MustParsePrefix
	a := func(texts ...string) (all []netip.Addr) {
		for _, text := range texts {
			all = append(all, netip.MustParseAddr(text))
		}
		return all
	}
	node := []store.CloudNIC{
		{MAC: "02:1b:2c:3d:4e:01", Primary: true, MTU: 1500, Network: []netip.Prefix{p("10.0.0.0/16")}, Subnets: []store.CloudSubnet{
			{Prefix: p("10.0.0.0/24"), Gateway: a("10.0.0.1")[0], Own: a("10.0.0.10"), Addresses: a("10.0.0.11", "10.0.0.12"), Ranges: []netip.Prefix{p("10.0.0.64/28")}},
			{Prefix: p("2001:db8:1:1::/64"), Gateway: a("2001:db8:1:1::1")[0], Own: a("2001:db8:1:1::10"), Addresses: a("2001:db8:1:1::11"), Ranges: []netip.Prefix{p("2001:db8:1:1:aaaa::/80")}},
		}},
		{MAC: "02:1b:2c:3d:4e:02", Device: 1, Network: []netip.Prefix{p("10.0.0.0/16")}, Subnets: []store.CloudSubnet{
			{Prefix: p("10.0.1.0/24"), Gateway: a("10.0.1.1")[0], Own: a("10.0.1.20"), Addresses: a("10.0.1.21")},
		}},
	}
	for provider, want := range map[string]string{
		"azure":        "10.0.0.11 10.0.0.12 2001:db8:1:1::11 10.0.1.21",
		"azure-imds":   "10.0.0.11 10.0.0.12 2001:db8:1:1::11 10.0.1.21",
		"aws":          "10.0.0.11 10.0.0.12 10.0.0.64/28 2001:db8:1:1::11 2001:db8:1:1:aaaa::/80 10.0.1.21",
		"gcp":          "10.0.0.11 10.0.0.12 10.0.0.64/28 10.0.1.21",
		"alibaba":      "10.0.0.11 10.0.0.12 10.0.0.64/28 2001:db8:1:1::11 2001:db8:1:1:aaaa::/80 10.0.1.21",
		"tencent":      "10.0.0.11 10.0.0.12 10.0.1.21",
		"oracle":       "2001:db8:1:1::11",
		"openstack":    "10.0.0.11 10.0.0.12 2001:db8:1:1::11 10.0.1.21",
		"digitalocean": "",
		"hetzner":      "10.0.0.11 10.0.0.12 10.0.1.21",
		"vultr":        "10.0.0.11 10.0.0.12 2001:db8:1:1::11 10.0.1.21",
	} {
		t.Run(provider, func(t *testing.T) {
			sim, err := cloudsim.Start(t.Context(), cloudsim.Options{Providers: []string{provider}, NICs: node, Listen: []string{"127.0.0.1:0"}})
			if err != nil {
				t.Fatal(err)
			}
			defer sim.Close()
			ours, _ := Lookup(provider)
			reply, err := ours.Fetch(t.Context(), Query{URL: sim.URL()})
			if reply == nil || (want == "") != errors.Is(err, ErrNoAddresses) || want != "" && err != nil {
				t.Fatal(reply, err)
			}
			var have []string
			for _, n := range reply.NICs {
				for _, s := range n.Subnets {
					for _, a := range s.Addresses {
						have = append(have, a.String())
					}
					for _, r := range s.Ranges {
						have = append(have, r.String())
					}
				}
			}
			if strings.Join(have, " ") != want {
				t.Errorf("%v, want %s\ndropped: %q", have, want, reply.Dropped)
			}
		})
	}
}
