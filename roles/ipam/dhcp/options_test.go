package dhcp_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestOptions: options that servers send, and options that they receive.
func TestOptions(t *testing.T) {
	const (
		dns     = `option domain-name-servers 10.9.0.1, 10.9.0.2; option domain-name "example.org"; option domain-search "a.example.org", "b.example.org";`
		static  = `option static-routes 192.168.5.0 10.9.0.3;`
		classes = `option rfc3442-classless-static-routes 8,10,10,9,0,4, 24,192,168,7,0,0,0,0, 0,10,9,0,5;`
		mtu     = `option interface-mtu 1400;`
	)
	for _, c := range []struct {
		name, server, keys, args, routes, dns, said string
		// logged are the daemon's messages about the routes.
		logged []string
	}{
		{
			name: "name servers", server: dns, routes: "0.0.0.0/0 via 10.9.0.1",
			dns: `{"nameservers":["10.9.0.1","10.9.0.2"],"domain":"example.org","search":["a.example.org","b.example.org"]}`,
		},
		{name: "static routes", server: static, routes: "192.168.5.0/24 via 10.9.0.3, 0.0.0.0/0 via 10.9.0.1", dns: `{}`},
		{
			name: "classless routes replace the others", server: static + classes, keys: `,"priority":77`, dns: `{}`,
			routes: "10.0.0.0/8 via 10.9.0.4 metric 77, 192.168.7.0/24 via 0.0.0.0 metric 77, 0.0.0.0/0 via 10.9.0.5 metric 77",
		},
		{
			name: "routers that are on no network of the link", dns: `{}`,
			server: `option routers 192.0.2.1; option static-routes 192.168.5.0 192.0.2.2, 192.168.6.0 192.0.2.2, 192.168.7.0 10.9.0.255, 192.168.8.0 10.9.0.10;`,
			routes: "192.0.2.2/32 via 0.0.0.0, 192.168.5.0/24 via 192.0.2.2, 192.168.6.0/24 via 192.0.2.2, 192.168.8.0/24 via 10.9.0.10, " +
				"192.0.2.1/32 via 0.0.0.0, 0.0.0.0/0 via 192.0.2.1",
			logged: []string{"192.168.5.0/24 via 192.0.2.2: the router is not in the network of 10.9.0.10/24", "192.168.7.0/24 via 10.9.0.255: left out", "0.0.0.0/0 via 192.0.2.1: the router"},
		},
		{
			name: "routers of classless routes that are not on the link", dns: `{}`, keys: `,"priority":77`,
			server: `option rfc3442-classless-static-routes 0,192,0,2,1, 32,192,0,2,1,0,0,0,0, 24,172,16,7,0,0,0,0, 16,10,20,172,16,7,1, 8,11,224,0,0,1, 32,10,9,0,1,10,9,0,4, 16,10,21,10,9,0,1;`,
			routes: "192.0.2.1/32 via 0.0.0.0 metric 77, 0.0.0.0/0 via 192.0.2.1 metric 77, 172.16.7.0/24 via 0.0.0.0 metric 77, " +
				"10.20.0.0/16 via 172.16.7.1 metric 77, 10.9.0.1/32 via 10.9.0.4 metric 77, 10.21.0.0/16 via 10.9.0.1 metric 77",
			logged: []string{"0.0.0.0/0 via 192.0.2.1: the router is not in the network of 10.9.0.10/24", "11.0.0.0/8 via 224.0.0.1: left out"},
		},
		{name: "MTU is not requested", server: mtu, routes: "0.0.0.0/0 via 10.9.0.1", dns: `{}`},
		{name: "MTU", server: mtu, keys: `,"request":[{"option":"interface-mtu"}]`, routes: "0.0.0.0/0 via 10.9.0.1 mtu 1400", dns: `{}`},
		{name: "few options", server: dns, keys: `,"request":[{"skipDefault":true,"option":"subnet-mask"}]`, dns: `{}`},
		{
			name: "host name", keys: `,"provide":[{"option":"host-name","value":"other","fromArg":"K8S_POD_NAME"},{"option":"60","value":"x"}]`,
			args: "IgnoreUnknown=1;K8S_POD_NAME=web-0", routes: "0.0.0.0/0 via 10.9.0.1", dns: `{}`, said: "(web-0) via eth0",
		},
		{
			name: "client identifier", keys: `,"provide":[{"option":"dhcp-client-identifier","value":"mine"}]`,
			routes: "0.0.0.0/0 via 10.9.0.1", dns: `{}`, said: `client "mine"`, server: `on commit { log(info, concat("client \"", option dhcp-client-identifier, "\"")); }`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			wire := newWire(t)
			server := isc(t, wire.server, "-4", isc4With(c.server))
			e := rolestest.NewEnv(t, all.Table())
			d := daemon(t, e)
			ns := netopstest.New(t)
			add := call("ADD", ns, conf(e, c.keys))
			add.Args = c.args
			r := result(t, e.OK(add))
			var routes []string
			for _, rt := range r.Routes {
				s := fmt.Sprintf("%s via %s", rt.Dst.String(), rt.GW)
				if rt.Priority != 0 {
					s += fmt.Sprint(" metric ", rt.Priority)
				}
				if rt.MTU != 0 {
					s += fmt.Sprint(" mtu ", rt.MTU)
				}
				routes = append(routes, s)
			}
			if got := strings.Join(routes, ", "); got != c.routes {
				t.Errorf("routes %q, want %q", got, c.routes)
			}
			got, err := json.Marshal(r.DNS)
			must(t, err)
			rolestest.SameJSON(t, string(got), c.dns)
			if c.said != "" {
				server.await(t, c.said, 1)
			}
			for _, s := range c.logged {
				d.await(t, s, 1)
			}
			check := call("CHECK", ns, rolestest.WithKeys(t, add.Conf, map[string]any{"prevResult": r}))
			check.Args = c.args
			e.OK(check)
			e.OK(call("DEL", ns, add.Conf))
		})
	}
}
