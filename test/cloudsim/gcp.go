package cloudsim

import (
	"fmt"
	"hash/fnv"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/cnibox/cnibox/store"
)

const gcpBase = "/computeMetadata/v1"

// gcp is Google's metadata server. It is the only one where a client can wait for a change, with the last answer's ETag.
func gcp() *provider {
	return &provider{name: "gcp", at: []string{"169.254.169.254:80"}, below: []string{"/computeMetadata/"}, serve: serveGCP}
}

func serveGCP(q *query) reply {
	r := gcpReply(q)
	return r.with("Metadata-Flavor", "Google").with("Server", "Metadata Server for VM")
}

func gcpReply(q *query) reply {
	rest, ok := strings.CutPrefix(q.path, gcpBase)
	switch {
	case q.Method != http.MethodGet:
		return page(http.StatusMethodNotAllowed)
	case forwarded(q.Header, "X-Forwarded-For"), q.Header.Get("Metadata-Flavor") != "Google":
		return page(http.StatusForbidden)
	case !ok:
		return page(http.StatusNotFound)
	}
	at := parts(rest)
	for i, part := range at {
		at[i] = camel(part)
	}
	found, ok := descend(gcpDocument(q.view), at)
	if !ok {
		return page(http.StatusNotFound)
	}
	v := q.URL.Query()
	_, leaf := found.(string)
	_, number := found.(int)
	leaf = leaf || number
	var r reply
	switch {
	case !leaf && !strings.HasSuffix(q.path, "/"):
		return page(http.StatusMovedPermanently).with("Location", "http://metadata.google.internal"+q.path+"/")
	case v.Get("recursive") == "true" && v.Get("alt") != "text", v.Get("alt") == "json":
		r = answer(http.StatusOK, typeJSON, string(encode(found)))
	case !leaf:
		r = answer(http.StatusOK, "application/text", dashedListing(found))
	default:
		r = answer(http.StatusOK, "application/text", listing(found))
	}
	return r.with("ETag", etag(r.body))
}

// etag depends on the content only, not on the time.
func etag(body []byte) string {
	h := fnv.New64a()
	_, _ = h.Write(body)
	return fmt.Sprintf("%016x", h.Sum64())
}

// waiting returns the ETag of the answer whose change the request waits for, and the longest time to wait. 0 means no limit.
func waiting(r *http.Request) (after string, limit time.Duration, waits bool) {
	v := r.URL.Query()
	if v.Get("wait_for_change") != "true" {
		return "", 0, false
	}
	seconds, err := strconv.Atoi(v.Get("timeout_sec"))
	if err != nil || seconds < 0 {
		seconds = 0
	}
	return v.Get("last_etag"), time.Duration(min(seconds, 86400)) * time.Second, true
}

// camel converts a path's ip-aliases to the document's ipAliases.
func camel(s string) string {
	var b strings.Builder
	up := false
	for _, r := range s {
		if r == '-' {
			up = true
			continue
		}
		if up {
			r = unicode.ToUpper(r)
		}
		up = false
		b.WriteRune(r)
	}
	return b.String()
}

// dashed converts ipAliases to ip-aliases.
func dashed(s string) string {
	var b strings.Builder
	for _, r := range s {
		if unicode.IsUpper(r) {
			b.WriteByte('-')
			r = unicode.ToLower(r)
		}
		b.WriteRune(r)
	}
	return b.String()
}

// dashedListing lists a directory's names in the form of paths, one a line.
func dashedListing(v any) string {
	if text := dashed(listing(v)); text != "" {
		return text + "\n"
	}
	return ""
}

func gcpDocument(v *view) map[string]any {
	interfaces := []any{}
	for i := range v.nics {
		interfaces = append(interfaces, gcpNIC(v, &v.nics[i]))
	}
	return map[string]any{"instance": map[string]any{
		"hostname":          "node-0.europe-west1-b.c.example.internal",
		"id":                "1234567890123456789",
		"networkInterfaces": interfaces,
		"zone":              "projects/123456789/zones/europe-west1-b",
	}}
}

// gcpNIC shows addresses for pods as aliases, single addresses as /32, IPv4 only.
func gcpNIC(v *view, n *store.CloudNIC) map[string]any {
	four, six := subnet(n, false), subnet(n, true)
	aliases := []any{}
	for _, s := range n.Subnets {
		if s.Prefix.Addr().Is6() {
			continue
		}
		for _, p := range s.Ranges {
			aliases = append(aliases, p.String())
		}
		for _, a := range s.Addresses {
			aliases = append(aliases, a.String()+"/32")
		}
	}
	mtu := n.MTU
	if mtu == 0 {
		mtu = 1460
	}
	one := map[string]any{
		"accessConfigs": []any{map[string]any{"externalIp": "", "type": "ONE_TO_ONE_NAT"}},
		"dnsServers":    anys(n.DNS, "169.254.169.254"),
		"forwardedIps":  []any{}, "ipAliases": aliases, "targetInstanceIps": []any{},
		"mac": v.write(n, macColons), "mtu": mtu, "network": "projects/123456789/networks/default",
	}
	if four != nil {
		one["ip"], one["gateway"], one["subnetmask"] = first(held(four)), gateway(four).String(), netmask(four.Prefix)
	}
	if six != nil {
		one["ipv6s"], one["dhcpv6Refresh"], one["forwardedIpv6s"] = anys(six.Own), "1", []any{}
	}
	return one
}

// anys returns texts for a document, or the default if there are none.
func anys[T fmt.Stringer](all []T, byDefault ...any) []any {
	if len(all) == 0 && len(byDefault) > 0 {
		return byDefault
	}
	out := []any{}
	for _, one := range all {
		out = append(out, one.String())
	}
	return out
}
