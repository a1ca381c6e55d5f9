package dhcp

import (
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/cluster/dhcp/protocol"
	"github.com/cnibox/cnibox/store"
)

func TestIdentity(t *testing.T) {
	key := store.Key{Network: "lan", ContainerID: "c1", IfName: "eth0"}
	const pod = "default/web-0"
	byPodName, byID := &protocol.Conf{IPAM: &protocol.IPAM{ClientID: protocol.ByPod}}, &protocol.Conf{IPAM: &protocol.IPAM{ClientID: protocol.ByContainer}}
	for _, c := range []struct {
		conf *protocol.Conf
		pod  string
		want string
	}{
		{byPodName, pod, "0123/default/web-0/lan/eth0"},
		{byPodName, "", "c1/lan/eth0"},
		{byID, pod, "c1/lan/eth0"},
	} {
		if got := identity(c.conf, key, c.pod, "0123"); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	key.ContainerID = strings.Repeat("x", 300)
	long := identity(byID, key, pod, "")
	key.IfName = "eth1"
	if other := identity(byID, key, pod, ""); len(long) != maxIdentity || other == long {
		t.Errorf("identities of %d bytes, the same for two interfaces: %v", len(long), other == long)
	}
}

func FuzzIdentity(f *testing.F) {
	f.Add(`{"name":"n","ipam":{"provide":[{"option":"61","fromArg":"A"}]}}`, "A=b")
	f.Fuzz(func(_ *testing.T, conf, text string) {
		c, err := protocol.Decode([]byte(conf))
		if err != nil {
			return
		}
		args, err := roles.ParseArgs(text)
		if err != nil {
			return
		}
		if options, err := c.Provided(args); err == nil {
			providedIdentity(options)
		}
		identity(c, store.Key{Network: c.Name}, text, "node")
	})
}
