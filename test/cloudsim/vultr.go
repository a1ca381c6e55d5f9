package cloudsim

import (
	"fmt"
	"net/http"
)

// vultr serves one document, as a whole or by its parts.
func vultr() *provider {
	return &provider{name: "vultr", at: []string{"169.254.169.254:80"}, below: []string{"/v1.json", "/v1/"}, serve: serveVultr}
}

func serveVultr(q *query) reply {
	if q.Method != http.MethodGet {
		return page(http.StatusMethodNotAllowed)
	}
	return serveDocument(q.path, "/v1", vultrDocument(q.view))
}

func vultrDocument(v *view) map[string]any {
	interfaces := []any{}
	for i := range v.nics {
		n := &v.nics[i]
		kind := "private"
		if n.Primary {
			kind = "public"
		}
		four := map[string]any{"address": "", "additional": []any{}, "gateway": "", "netmask": ""}
		if s := subnet(n, false); s != nil {
			more := []any{}
			for _, a := range s.Addresses {
				more = append(more, map[string]any{"address": a.String(), "netmask": netmask(s.Prefix)})
			}
			four = map[string]any{"address": first(s.Own), "additional": more, "gateway": gateway(s).String(), "netmask": netmask(s.Prefix)}
		}
		six := map[string]any{"address": "", "additional": []any{}, "network": "", "prefix": ""}
		if s := subnet(n, true); s != nil {
			more := []any{}
			for _, a := range s.Addresses {
				more = append(more, map[string]any{"address": a.String(), "netmask": fmt.Sprint(s.Prefix.Bits())})
			}
			six = map[string]any{
				"address": first(s.Own), "additional": more,
				"network": s.Prefix.Masked().Addr().String(), "prefix": fmt.Sprint(s.Prefix.Bits()),
			}
		}
		interfaces = append(interfaces, map[string]any{"ipv4": four, "ipv6": six, "mac": v.write(n, macColons), "network-type": kind})
	}
	return map[string]any{
		"hostname": "node-0", "instanceid": "12345678", "interfaces": interfaces,
		"region": map[string]any{"regioncode": "FRA"},
	}
}
