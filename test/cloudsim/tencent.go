package cloudsim

import (
	"net/http"
	"strings"
)

const tencentName = "tencent"

// tencent requires no header.
func tencent() *provider {
	return &provider{name: tencentName, at: []string{"169.254.0.23:80"}, below: []string{metaData}, serve: serveTencent}
}

func serveTencent(q *query) reply {
	if q.Method != http.MethodGet {
		return page(http.StatusMethodNotAllowed)
	}
	rest, ok := strings.CutPrefix(q.path, dataPath)
	if !ok {
		return page(http.StatusNotFound)
	}
	return tencentTree(q.view).reply(strings.TrimPrefix(rest, "/"))
}

// tencentTree has IPv4 only: the answer for IPv6 is not documented.
func tencentTree(v *view) tree {
	t := tree{"instance-id": "ins-1234abcd", "placement/region": "ap-guangzhou", "placement/zone": "ap-guangzhou-3"}
	for i := range v.nics {
		n := &v.nics[i]
		mac := v.write(n, macColons)
		if n.Primary {
			t.put("mac", mac)
			t.put("local-ipv4", first(held(subnet(n, false))))
		}
		at := "network/interfaces/macs/" + mac + "/"
		t.put(at+"mac", mac)
		t.put(at+"vpc-id", id("vpc", n, 0))
		t.put(at+"subnet-id", id("subnet", n, i))
		for j, s := range n.Subnets {
			if s.Prefix.Addr().Is6() {
				continue
			}
			if j == 0 {
				t.put(at+"primary-local-ipv4", first(held(&s)))
			}
			for _, a := range held(&s) {
				one := at + "local-ipv4s/" + a.String() + "/"
				t.put(one+"gateway", gateway(&s).String())
				t.put(one+"local-ipv4", a.String())
				t.put(one+"subnet-mask", netmask(s.Prefix))
			}
		}
	}
	return t
}
