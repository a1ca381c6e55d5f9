package lab

import (
	"context"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/cnibox/cnibox/internal/smallfile"
)

// config is the network's configuration. Unlike flannel's usual one it uses the first subnet, too,
// as Kubernetes does.
const config = `{
  "Network": "` + network + `",
  "SubnetMin": "10.244.0.0",
  "Backend": {"Type": "vxlan"}
}
`

func (l *Lab) clusterDir() string { return filepath.Join(l.Dir, "cluster") }

// fillRegistry writes the configuration and the nodes' reservations.
func (l *Lab) fillRegistry(ctx context.Context, s *State) error {
	if s.Registry == "etcd" {
		return fillEtcd(ctx, s)
	}
	nodes := filepath.Join(l.clusterDir(), "nodes")
	if err := os.MkdirAll(nodes, 0o755); err != nil {
		return err
	}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		b, err := json.Marshal(struct {
			Name     string         `json:"name"`
			PodCIDRs []netip.Prefix `json:"podCIDRs"`
		}{n.Name, []netip.Prefix{n.PodNetwork}})
		if err != nil {
			return err
		}
		if err := smallfile.Replace(filepath.Join(nodes, n.Name+".json"), b, 0o644); err != nil {
			return err
		}
	}
	return smallfile.Replace(filepath.Join(l.clusterDir(), "config.json"), []byte(config), 0o644)
}

// registryFlags returns the agent's flags for the registry.
func (l *Lab) registryFlags(s *State) []string {
	if s.Registry == "etcd" {
		return []string{"-etcd-endpoints", "http://" + forwarded, "-etcd-prefix", etcdPrefix}
	}
	return []string{"-cluster-dir", l.clusterDir()}
}
