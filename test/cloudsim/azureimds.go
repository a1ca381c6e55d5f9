package cloudsim

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/store"
)

// azureIMDS is Azure's instance metadata service.
func azureIMDS() *provider {
	return &provider{
		name: "azure-imds", at: []string{"169.254.169.254:80"},
		below: []string{"/metadata/instance", "/metadata/versions"}, serve: serveAzureIMDS,
	}
}

// imdsVersions are the accepted values of api-version, the newest last.
func imdsVersions() []string {
	return []string{
		"2017-03-01", "2017-04-02", "2017-08-01", "2017-10-01", "2017-12-01", "2018-02-01", "2018-04-02", "2018-10-01",
		"2019-02-01", "2019-03-11", "2019-04-30", "2019-06-01", "2019-06-04", "2019-08-01", "2019-08-15", "2019-11-01",
		"2020-06-01", "2020-07-15", "2020-09-01", "2020-10-01", "2020-12-01",
		"2021-01-01", "2021-02-01", "2021-03-01", "2021-05-01", "2021-10-01", "2021-11-01", "2021-11-15", "2021-12-13", "2023-07-01",
	}
}

func serveAzureIMDS(q *query) reply {
	versions := imdsVersions()
	v := q.URL.Query()
	version := v.Get("api-version")
	switch {
	case q.Method != http.MethodGet:
		return imdsError(http.StatusMethodNotAllowed, fmt.Sprintf("Http method not allowed: Path = '%s', Method = '%s'", q.path, q.Method))
	case !strings.EqualFold(q.Header.Get("Metadata"), "true"):
		return imdsError(http.StatusBadRequest, "Bad request. Required metadata header not specified")
	case forwarded(q.Header, "X-Forwarded-For"):
		return imdsError(http.StatusBadRequest, "Bad request. X-Forwarded-For header is not allowed")
	case strings.TrimSuffix(q.path, "/") == "/metadata/versions":
		return answer(http.StatusOK, typeJSON, string(encode(map[string]any{"apiVersions": versions})))
	case !slices.Contains(versions, version):
		said := "api-version was not specified in the request"
		if version != "" {
			said = "api-version is invalid or was not specified in the request"
		}
		newest := slices.Clone(versions[len(versions)-3:])
		slices.Reverse(newest)
		return answer(http.StatusBadRequest, typeJSON, string(encode(map[string]any{
			"error":           "Bad request. " + said + ". For more information refer to aka.ms/azureimds",
			"newest-versions": newest,
		})))
	}
	at := parts(q.path)
	if len(at) < 2 || at[1] != "instance" {
		return imdsError(http.StatusNotFound, "Not found")
	}
	found, ok := descend(imdsInstance(q.view), at[2:])
	if !ok {
		return imdsError(http.StatusNotFound, "Not found")
	}
	// Leaves are texts in every format.
	if _, leaf := found.(string); leaf || v.Get("format") == "text" {
		return answer(http.StatusOK, typeText, listing(found))
	}
	return answer(http.StatusOK, typeJSON+"; charset=utf-8", string(encode(found)))
}

func imdsError(status int, text string) reply {
	return answer(status, typeJSON, string(encode(map[string]any{"error": text})))
}

// imdsInstance returns the document; every value is a text.
func imdsInstance(v *view) map[string]any {
	interfaces := []any{}
	for i := range v.nics {
		n := &v.nics[i]
		interfaces = append(interfaces, map[string]any{
			"ipv4":       imdsFamily(n, false),
			"ipv6":       imdsFamily(n, true),
			"macAddress": v.write(n, macUpper),
		})
	}
	return map[string]any{
		"compute": map[string]any{"azEnvironment": "AzurePublicCloud", "location": "westeurope", "name": "node-0", "vmSize": "Standard_DS2_v2"},
		"network": map[string]any{"interface": interfaces},
	}
}

// imdsFamily lists addresses and subnets of a NIC separately, as the original does: it does not say which address belongs to which
// subnet. IPv6 has no subnets.
func imdsFamily(n *store.CloudNIC, v6 bool) map[string]any {
	addresses, subnets := []any{}, []any{}
	for _, s := range n.Subnets {
		if s.Prefix.Addr().Is6() != v6 {
			continue
		}
		for _, a := range held(&s) {
			one := map[string]any{"privateIpAddress": a.String()}
			if !v6 {
				one["publicIpAddress"] = ""
			}
			addresses = append(addresses, one)
		}
		subnets = append(subnets, map[string]any{"address": s.Prefix.Addr().String(), "prefix": fmt.Sprint(s.Prefix.Bits())})
	}
	if v6 {
		return map[string]any{"ipAddress": addresses}
	}
	return map[string]any{"ipAddress": addresses, "subnet": subnets}
}
