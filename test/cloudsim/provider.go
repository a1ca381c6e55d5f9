package cloudsim

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// provider is one cloud's metadata service.
type provider struct {
	name string
	// at are the addresses of the service.
	at []string
	// below are the prefixes of its paths.
	below []string
	serve func(q *query) reply
}

// query is a request with the data for its answer.
type query struct {
	*http.Request
	// path is the request's, without the provider's name.
	path string
	view *view
	// tokens are those of the provider.
	tokens *tokens
}

// reply is a provider's correct answer. Faults change it later.
type reply struct {
	status int
	header http.Header
	body   []byte
}

func providers() []*provider {
	return []*provider{
		azure(), azureIMDS(), aws(), gcp(), alibaba(), tencent(), oracle(), openstack(), digitalocean(), hetzner(), vultr(),
	}
}

// allProviders is the name that selects every provider.
const allProviders = "all"

// choose finds providers by name.
func choose(names []string) ([]*provider, error) {
	every := providers()
	if slices.Equal(names, []string{allProviders}) {
		return every, nil
	}
	known := make([]string, len(every))
	for i, p := range every {
		known[i] = p.name
	}
	var all []*provider
	for i, name := range names {
		at := slices.Index(known, name)
		if at < 0 {
			return nil, fmt.Errorf("%.40q is no provider: use %s or %s", name, strings.Join(known, ", "), allProviders)
		}
		if !slices.Contains(names[:i], name) {
			all = append(all, every[at])
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no provider is named: use %s or %s", strings.Join(known, ", "), allProviders)
	}
	return all, nil
}

// pick finds the provider of a request, and the request's path without the provider's name. A single provider gets all requests. Of
// several, the path decides, except for AWS, Alibaba and Tencent, which share one: there the address decides, then the header with
// the token, which AWS and Alibaba require.
func pick(all []*provider, r *http.Request) (p *provider, path string) {
	path = r.URL.Path
	if len(all) == 1 {
		return all[0], path
	}
	name, rest, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	find := func(name string) *provider {
		if i := slices.IndexFunc(all, func(p *provider) bool { return p.name == name }); i >= 0 {
			return all[i]
		}
		return nil
	}
	if p := find(name); p != nil && name != openstackName && name != hetznerName {
		return p, "/" + rest
	}
	for _, p := range all {
		if slices.ContainsFunc(p.below, func(b string) bool { return strings.HasPrefix(path, b) }) && isFor(p, r) {
			return p, path
		}
	}
	return nil, path
}

// isFor reports whether a request with a path of the provider is for it.
func isFor(p *provider, r *http.Request) bool {
	if !slices.Contains(p.below, metaData) {
		return true
	}
	meant := tencentName
	switch {
	case r.Host == "100.100.100.200" || carries(r.Header, alibabaToken):
		meant = alibabaName
	case carries(r.Header, awsToken):
		meant = awsName
	}
	return p.name == meant
}

// carries reports whether there is a header with this prefix.
func carries(h http.Header, prefix string) bool {
	for name := range h {
		if strings.HasPrefix(strings.ToLower(name), strings.ToLower(prefix)) {
			return true
		}
	}
	return false
}

// forwarded reports whether a proxy forwarded the request. Some clouds refuse that.
func forwarded(h http.Header, names ...string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return h.Get(n) != "" })
}

// Types of content.
const (
	typeText = "text/plain"
	typeHTML = "text/html"
	typeJSON = "application/json"
	typeXML  = "text/xml; charset=utf-8"
	typeYAML = "text/yaml"
)

func answer(status int, kind, body string) reply {
	return reply{status: status, header: http.Header{"Content-Type": {kind}}, body: []byte(body)}
}

func (r reply) with(name, value string) reply {
	r.header.Set(name, value)
	return r
}

// page is the error page of an HTTP status.
func page(status int) reply {
	title := fmt.Sprintf("%d - %s", status, http.StatusText(status))
	return answer(status, typeHTML, "<?xml version=\"1.0\" encoding=\"iso-8859-1\"?>\n<html>\n <head><title>"+title+"</title></head>\n <body><h1>"+title+"</h1></body>\n</html>\n")
}
