package cloudsim

import (
	"net/http"
	"strings"
)

const oracleBase = "/opc/v2/"

// oracle is the second version of OCI's service; the first is disabled.
func oracle() *provider {
	return &provider{name: "oracle", at: []string{"169.254.169.254:80"}, below: []string{"/opc/"}, serve: serveOracle}
}

func serveOracle(q *query) reply {
	rest, ok := strings.CutPrefix(q.path, oracleBase)
	switch {
	case q.Method != http.MethodGet:
		return page(http.StatusMethodNotAllowed)
	case !ok:
		return page(http.StatusNotFound)
	case q.Header.Get("Authorization") != "Bearer Oracle":
		return page(http.StatusUnauthorized)
	case forwarded(q.Header, "Forwarded", "X-Forwarded-For", "X-Forwarded-Host"):
		return page(http.StatusForbidden)
	}
	found, ok := descend(map[string]any{"vnics": oracleVNICs(q.view)}, parts(rest))
	if !ok {
		return page(http.StatusNotFound)
	}
	if text, leaf := found.(string); leaf {
		return answer(http.StatusOK, typeText, text)
	}
	return answer(http.StatusOK, typeJSON, string(encode(found)))
}

// oracleVNICs shows a VNIC's first private address only: the metadata does not contain secondary ones.
func oracleVNICs(v *view) []any {
	all := []any{}
	for i := range v.nics {
		n := &v.nics[i]
		one := map[string]any{
			"vnicId": "ocid1.vnic.oc1.eu-frankfurt-1." + id("eni", n, i), "macAddr": v.write(n, macUpperColons),
			"nicIndex": n.Device, "vlanTag": 1000 + i, "subnetCidrBlock": "<null>",
		}
		if s := subnet(n, false); s != nil {
			one["privateIp"], one["subnetCidrBlock"], one["virtualRouterIp"] = first(held(s)), s.Prefix.String(), gateway(s).String()
		}
		if s := subnet(n, true); s != nil {
			one["ipv6Addresses"], one["ipv6SubnetCidrBlock"], one["ipv6VirtualRouterIp"] = anys(held(s)), s.Prefix.String(), gateway(s).String()
		}
		all = append(all, one)
	}
	return all
}
