package agent_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles/cluster/nodeipam"
	"github.com/cnibox/cnibox/store/cluster/dir"
	"github.com/cnibox/cnibox/store/cluster/etcd"
	"github.com/cnibox/cnibox/store/cluster/etcd/etcdtest"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
	"github.com/cnibox/cnibox/store/cluster/objects"
)

// TestNodeipam: agents wait for the pod networks that nodeipam assigns by their labels in a directory and in etcd, and
// pods reach each other. A node that leaves gives its object back.
func TestNodeipam(t *testing.T) {
	t.Run("dir", func(t *testing.T) {
		w := newWorld(t, 3, vxlan)
		r, err := dir.Open(dir.Options{Dir: w.dir, Name: "test"})
		must(t, err)
		w.assigned(objects.New(r), "cluster-dir", w.dir)
	})
	t.Run("etcd", func(t *testing.T) {
		runtime.LockOSThread() // etcd ends with the thread that started it
		defer runtime.UnlockOSThread()
		server := etcdtest.Start(t)
		etcdCall(t, server.URL, "/v3/kv/put", map[string]any{"key": b64(flannelPrefix + "/config"), "value": b64(vxlan)})
		w := newWorld(t, 3, vxlan)
		w.useEtcd(server.URL)
		r, err := etcd.Open(etcd.Options{Endpoints: []string{server.URL}})
		must(t, err)
		t.Cleanup(func() { must(t, r.Close()) })
		w.assigned(objects.New(r), "etcd-endpoints", server.URL)
	})
}

func (w *world) assigned(client *objects.Client, flag, registry string) {
	t := w.t
	w.registry = []string{"-" + flag + "=" + registry, "-nodeipam"}
	zones := []string{"a", "a", "b"}
	within := map[string]string{"a": "10.244.64.0/20", "b": "10.244.128.0/20"}
	for i, n := range w.nodes {
		n.launch("-node-labels=zone=" + zones[i] + ",rack=1")
		w.within(func() bool { // the file is there before the agent listens
			c, err := net.Dial("unix", n.socket())
			return err == nil && c.Close() == nil
		}, func() string { return "no socket" })
		n.until("reason", func(a answer) bool { return !a.Ready && strings.Contains(a.Reason, "no pod network assigned") })
	}
	file := filepath.Join(t.TempDir(), "ranges.yaml")
	must(t, os.WriteFile(file, []byte(`items:
- metadata: {name: a}
  spec: {ipv4: 10.244.64.0/20, perNodeHostBits: 7, nodeSelector: {nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: In, values: [a]}]}]}}
- metadata: {name: b}
  spec: {ipv4: 10.244.128.0/20, perNodeHostBits: 6, nodeSelector: {nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: In, values: [b]}]}]}}
`), 0o644))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	args := []string{"-" + flag + "=" + registry, "-cluster-cidr-file=" + file, "-socket=" + filepath.Join(t.TempDir(), "socket"), "-leader-elect-retry-period=100ms"}
	host := w.nodes[0].host()
	go func() { ended <- nodeipam.Run(ctx, host, args) }()
	defer func() { stop(); must(t, <-ended) }()
	var pods []*pod
	for i, n := range w.nodes {
		s := n.until("pod network", func(a answer) bool { return a.Ready })
		if len(s.PodCIDRs) != 1 || s.PodCIDRs[0].Bits() != map[string]int{"a": 25, "b": 26}[zones[i]] || !netip.MustParsePrefix(within[zones[i]]).Overlaps(s.PodCIDRs[0]) {
			t.Errorf("a node of zone %s has %v", zones[i], s.PodCIDRs)
		}
		pods = append(pods, n.attach())
	}
	w.reach(false, pods...)
	last := w.nodes[2]
	last.stop()
	_, err := last.verb("agent cleanup", map[string]string{"subnet-file": last.subnetFile(), "node-name": last.name, flag: registry, "nodeipam": "true"})
	must(t, err)
	if err := client.Get(t.Context(), "/api/v1/nodes/"+last.name, &rest.Node{}); !errors.Is(err, rest.ErrNotFound) {
		t.Errorf("the object of a node that left: %v", err)
	}
}
