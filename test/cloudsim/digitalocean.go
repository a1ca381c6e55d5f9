package cloudsim

import (
	"net/http"
	"strings"

	"github.com/cnibox/cnibox/store"
)

// digitalocean shows a droplet's own addresses, and none for pods.
func digitalocean() *provider {
	return &provider{name: "digitalocean", at: []string{"169.254.169.254:80"}, below: []string{"/metadata/v1"}, serve: serveDigitalOcean}
}

func serveDigitalOcean(q *query) reply {
	if q.Method != http.MethodGet {
		return page(http.StatusMethodNotAllowed)
	}
	return serveDocument(q.path, "/metadata/v1", droplet(q.view))
}

// serveDocument serves a document as a whole at base + ".json", and its parts below base + "/".
func serveDocument(path, base string, doc map[string]any) reply {
	if path == base+".json" {
		return answer(http.StatusOK, typeJSON, string(encode(doc)))
	}
	rest, ok := strings.CutPrefix(path, base+"/")
	if !ok {
		return page(http.StatusNotFound)
	}
	found, ok := descend(doc, parts(rest))
	if !ok {
		return page(http.StatusNotFound)
	}
	return answer(http.StatusOK, typeText, listing(found))
}

func droplet(v *view) map[string]any {
	private, public := []any{}, []any{}
	dns := []any{}
	for i := range v.nics {
		n := &v.nics[i]
		kind := "private"
		if n.Primary {
			kind = "public"
			dns = anys(n.DNS)
		}
		one := map[string]any{"mac": v.write(n, macColons), "type": kind}
		if s := subnet(n, false); s != nil && len(held(s)) > 0 {
			one["ipv4"] = masked(s)
		}
		if s := subnet(n, true); s != nil && len(held(s)) > 0 {
			one["ipv6"] = map[string]any{
				"ip_address": strings.ToUpper(held(s)[0].StringExpanded()), "cidr": s.Prefix.Bits(),
				"gateway": strings.ToUpper(gateway(s).StringExpanded()),
			}
		}
		if n.Primary {
			public = append(public, one)
		} else {
			private = append(private, one)
		}
	}
	return map[string]any{
		"droplet_id": 2756294, "hostname": "node-0", "region": "fra1",
		"interfaces": map[string]any{"private": private, "public": public},
		"dns":        map[string]any{"nameservers": dns},
	}
}

// masked returns a subnet's first address in the form of clouds that write masks.
func masked(s *store.CloudSubnet) map[string]any {
	return map[string]any{"ip_address": first(held(s)), "netmask": netmask(s.Prefix), "gateway": gateway(s).String()}
}
