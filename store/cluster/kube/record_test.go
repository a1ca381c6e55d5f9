package kube

import (
	"encoding/json"
	"maps"
	"testing"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
)

// FuzzRecord: any Node object is a usable node or a fault, and a node that was read
// is written with the same value.
func FuzzRecord(f *testing.F) {
	k, err := newKeys(DefaultPrefix)
	if err != nil {
		f.Fatal(err)
	}
	config, _, err := cluster.ParseConfig([]byte(`{"Network":"10.0.0.0/8","EnableIPv6":true,"IPv6Network":"fd00::/16"}`))
	if err != nil {
		f.Fatal(err)
	}
	r := &Registry{name: "self", config: config, keys: k}
	f.Add([]byte(`{"metadata":{"name":"a","annotations":{"flannel.alpha.coreos.com/backend-type":"vxlan","flannel.alpha.coreos.com/public-ip":"192.0.2.1",
		"flannel.alpha.coreos.com/backend-data":"{\"VNI\":1,\"VtepMAC\":\"02:00:00:00:00:01\"}"}},"spec":{"podCIDR":"10.1.0.0/24"}}`))
	f.Add([]byte(`{"metadata":{"name":"self","annotations":{"flannel.alpha.coreos.com/public-ipv6":"2001:db8::1","flannel.alpha.coreos.com/backend-v6-data":"null",
		"flannel.alpha.coreos.com/node-public-ip":"x"}},"spec":{"podCIDRs":["10.1.0.0/24","fd00::/64"]}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var o rest.Node
		if json.Unmarshal(raw, &o) != nil {
			return
		}
		n, err := r.node(&o)
		if err != nil {
			return
		}
		o.Metadata.Annotations = maps.Clone(o.Metadata.Annotations)
		if o.Metadata.Annotations == nil {
			o.Metadata.Annotations = map[string]string{}
		}
		for key, value := range k.annotations(&n) {
			if delete(o.Metadata.Annotations, key); value != nil {
				o.Metadata.Annotations[key] = *value
			}
		}
		again, err := r.node(&o)
		if err != nil || !again.Same(&n) || len(missing(&o, k.annotations(&n))) != 0 {
			t.Fatalf("%+v became %+v, %v", n, again, err)
		}
	})
}
