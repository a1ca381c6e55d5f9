package cloudsim

import (
	"net/http"
	"strings"
)

const (
	alibabaName  = "alibaba"
	alibabaToken = "X-Aliyun-Ecs-Metadata-Token"
)

// alibaba is ECS in its hardened mode: every request needs a token.
func alibaba() *provider {
	return &provider{name: alibabaName, at: []string{"100.100.100.200:80"}, below: []string{metaData}, serve: serveAlibaba}
}

func serveAlibaba(q *query) reply {
	if q.path == tokenPath {
		if q.Method != http.MethodPut {
			return page(http.StatusMethodNotAllowed)
		}
		return q.tokens.issue(q.Request, alibabaToken+"-Ttl-Seconds")
	}
	token := q.Header.Get(alibabaToken)
	switch {
	case q.Method != http.MethodGet:
		return page(http.StatusMethodNotAllowed)
	case token == "":
		return page(http.StatusForbidden)
	case !q.tokens.valid(token, q.view.tokenOnce):
		return page(http.StatusUnauthorized)
	}
	rest, ok := strings.CutPrefix(q.path, dataPath)
	if !ok {
		return page(http.StatusNotFound)
	}
	return alibabaTree(q.view).reply(strings.TrimPrefix(rest, "/"))
}

func alibabaTree(v *view) tree {
	t := tree{"instance-id": "i-bp1234567890abcdefgh", "region-id": "cn-hangzhou", "zone-id": "cn-hangzhou-b"}
	for i := range v.nics {
		n := &v.nics[i]
		mac := v.write(n, macColons)
		four, six := subnet(n, false), subnet(n, true)
		vpc := first(ofFamily(n.Network, false))
		if n.Primary {
			t.put("mac", mac)
			t.put("private-ipv4", first(held(four)))
			t.put("vpc-cidr-block", vpc)
			t.put("dns-conf/nameservers", lines(n.DNS))
		}
		at := "network/interfaces/macs/" + mac + "/"
		t.put(at+"network-interface-id", id("eni", n, i))
		t.put(at+"vpc-id", id("vpc", n, 0))
		t.put(at+"vpc-cidr-block", vpc)
		t.put(at+"vswitch-id", id("vsw", n, i))
		if four != nil {
			t.put(at+"primary-ip-address", first(held(four)))
			t.put(at+"private-ipv4s", string(encode(texts(held(four)))))
			t.put(at+"gateway", gateway(four).String())
			t.put(at+"netmask", netmask(four.Prefix))
			t.put(at+"vswitch-cidr-block", four.Prefix.String())
			t.put(at+"ipv4-prefixes", lines(ranges(four)))
		}
		if six != nil {
			// This is not JSON, although it looks like it.
			t.put(at+"ipv6s", "["+strings.Join(texts(held(six)), ", ")+"]")
			t.put(at+"ipv6-gateway", gateway(six).String())
			t.put(at+"vswitch-ipv6-cidr-block", six.Prefix.String())
			t.put(at+"ipv6-prefixes", lines(ranges(six)))
		}
	}
	return t
}
