package nodeipam

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/internal/yaml"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/cloud/metadata"
	"github.com/cnibox/cnibox/roles/cluster/process"
	"github.com/cnibox/cnibox/store/cluster/kube/election"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
)

// settings are the daemon's flags. A flag that kube-controller-manager has too has its name.
type settings struct {
	networks   networks
	kubeconfig string
	master     string
	etcd       process.Etcd
	// dir is the directory that is the registry, or empty.
	dir    string
	socket string
	// allocator is rangeAllocator or cloudAllocator. The others are only for the latter.
	allocator, node, url string
	provider             metadata.Provider
	// listen is the address of /metrics and /healthz, or empty.
	listen string
	lease  election.Options
}

// networks are the flags that define the blocks.
type networks struct {
	clusters []netip.Prefix
	services []netip.Prefix
	// objects is true if ClusterCIDR objects are used. Then clusters may be empty.
	objects bool
	// file has ClusterCIDR objects, or is empty. text is its content as last read, and ranges are its objects.
	file   string
	text   []byte
	ranges []clusterCIDR
	// A mask of 0 is not given.
	mask, mask4, mask6 int
}

// lockName is the Lease's name.
const lockName = "cnibox-nodeipam"

// Defaults of masks.
const (
	defaultMask4 = 24
	defaultMask6 = 64
)

// parseFlags reads the flags. All faults are reported at once.
func parseFlags(version string, args, env []string) (*settings, error) {
	s := &settings{}
	f := process.NewFlags(name)
	s.register(f)
	errs, err := process.Parse(f, "assign pod networks to the nodes of a cluster", version, args)
	if err != nil {
		return nil, err
	}
	paths := s.etcd.Paths()
	maps.Copy(paths, map[string]string{"-kubeconfig": s.kubeconfig, "-socket": s.socket, "-cluster-dir": s.dir, "-cluster-cidr-file": s.networks.file})
	errs = append(errs, process.CheckPaths(paths)...)
	registries := 0
	for _, on := range []bool{s.kubeconfig != "" || s.master != "" || s.networks.objects, len(s.etcd.Endpoints) > 0, s.dir != ""} {
		if on {
			registries++
		}
	}
	if registries > 1 {
		errs = append(errs, errors.New("-kubeconfig, -master and -cluster-cidr-objects, -etcd-endpoints, -cluster-dir: give those of one registry"))
	}
	if s.fromCloud() {
		errs = append(errs, s.checkCloud(env))
	} else if err := s.networks.readFile(); err != nil {
		errs = append(errs, err)
	} else if _, err = s.networks.table(); err != nil {
		errs = append(errs, err)
	}
	if errs = append(errs, s.etcd.Check(), s.lease.Check()); errors.Join(errs...) != nil {
		return nil, roles.Usagef("%w", errors.Join(errs...))
	}
	return s, nil
}

// Values of -cidr-allocator-type. They are kube-controller-manager's.
const (
	rangeAllocator = "RangeAllocator"
	cloudAllocator = "CloudAllocator"
)

// fromCloud reports whether the cloud gives the pod networks.
func (s *settings) fromCloud() bool { return s.allocator == cloudAllocator }

// checkCloud checks the flags of the cloud, and chooses the node.
func (s *settings) checkCloud(env []string) error {
	n := &s.networks
	s.node = cmp.Or(s.node, process.Getenv(env, "NODE_NAME"))
	switch {
	case n.objects || n.file != "" || len(n.clusters)+len(n.services) > 0:
		return errors.New("-cidr-allocator-type=CloudAllocator: leave out the flags of networks")
	case len(s.etcd.Endpoints) > 0 || s.dir != "":
		return errors.New("-cidr-allocator-type=CloudAllocator: it works with Kubernetes only")
	case s.url != "" && metadata.CheckURL(s.url) != nil:
		return fmt.Errorf("-cloud-url: %w", metadata.CheckURL(s.url))
	}
	return rest.CheckName("-node-name or NODE_NAME", s.node)
}

func (s *settings) register(f *flag.FlagSet) {
	s.networks.register(f)
	f.StringVar(&s.kubeconfig, "kubeconfig", "", "`path` of a kubeconfig; default: the pod's service account")
	f.StringVar(&s.master, "master", "", "`URL` of the API server, instead of the kubeconfig's")
	f.StringVar(&s.dir, "cluster-dir", "", "use the agents' directory at this `path` as the registry")
	s.etcd.Register(f, passwordVariable)
	s.allocator = rangeAllocator
	f.Func("cidr-allocator-type", "RangeAllocator, or CloudAllocator: assign to this node only, `what` the cloud gives to it (RangeAllocator)", func(v string) error {
		if v != rangeAllocator && v != cloudAllocator {
			return fmt.Errorf("%.60q: give %s or %s", v, rangeAllocator, cloudAllocator)
		}
		s.allocator = v
		return nil
	})
	f.StringVar(&s.node, "node-name", "", "`name` of this machine's Node, for CloudAllocator; default: NODE_NAME")
	s.provider, _ = metadata.Lookup("auto")
	f.Func("cloud-provider", "`name` of the cloud, for CloudAllocator: 'cnibox cloud show --providers' lists them (auto)", func(v string) error {
		p, ok := metadata.Lookup(v)
		if !ok || v == "file" {
			return fmt.Errorf("%.60q is not a cloud", v)
		}
		s.provider = p
		return nil
	})
	f.StringVar(&s.url, "cloud-url", "", "base `URL` of the cloud's metadata service; default: the cloud's")
	f.StringVar(&s.socket, "socket", "", "`path` of the status socket; default: nodeipam.sock in the run directory")
	f.BoolVar(&s.networks.objects, "cluster-cidr-objects", false, "use the ClusterCIDR objects of networking.x-k8s.io/v1, in addition to -cluster-cidr if that is given")
	f.StringVar(&s.networks.file, "cluster-cidr-file", "", "use the ClusterCIDR objects in the file at this `path`, a list in YAML or JSON, in addition to -cluster-cidr if that is given")
	f.StringVar(&s.listen, "metrics-bind-address", "", "`address` for /metrics and /healthz, as 127.0.0.1:9109; default: none")
	f.StringVar(&s.lease.Namespace, "leader-elect-resource-namespace", "kube-system", "`namespace` of the Lease")
	f.StringVar(&s.lease.Name, "leader-elect-resource-name", lockName, "`name` of the Lease")
	f.DurationVar(&s.lease.Duration, "leader-elect-lease-duration", 15*time.Second, "time without a renewal after which another process may lead")
	f.DurationVar(&s.lease.Deadline, "leader-elect-renew-deadline", 10*time.Second, "time without a renewal after which the leader stops")
	f.DurationVar(&s.lease.Retry, "leader-elect-retry-period", 2*time.Second, "time between two renewals, or two attempts to lead")
}

func (n *networks) register(f *flag.FlagSet) {
	f.Func("cluster-cidr", "pods' `network`, or one of each family separated by a comma: 10.244.0.0/16,fd00:10:244::/48", prefixes(&n.clusters))
	f.IntVar(&n.mask, "node-cidr-mask-size", 0, "prefix `length` of a node's block with one cluster network; 0 means 24, or 64 for IPv6")
	f.IntVar(&n.mask4, "node-cidr-mask-size-ipv4", 0, "prefix `length` of a node's IPv4 block; 0 means 24")
	f.IntVar(&n.mask6, "node-cidr-mask-size-ipv6", 0, "prefix `length` of a node's IPv6 block; 0 means 64")
	f.Func("service-cluster-ip-range", "services' `networks`, which no node gets; separated by commas", prefixes(&n.services))
	f.Func("secondary-service-cluster-ip-range", "further `network` of services", prefixes(&n.services))
}

// prefixes adds the networks of a comma-separated list.
func prefixes(to *[]netip.Prefix) func(string) error {
	return func(v string) error {
		for one := range strings.SplitSeq(v, ",") {
			p, err := netip.ParsePrefix(strings.TrimSpace(one))
			if err != nil || p.Addr().Is4In6() {
				return fmt.Errorf("%.60q is not a network: give for example 10.244.0.0/16", one)
			}
			*to = append(*to, p.Masked())
		}
		return nil
	}
}

// blocks returns the blocks of each cluster network, or an error that names the flag.
func (n *networks) blocks() ([]*blocks, error) {
	dual := len(n.clusters) == 2
	switch {
	case n.objects && n.file != "":
		return nil, errors.New("-cluster-cidr-objects and -cluster-cidr-file: give one")
	case len(n.clusters) == 0 && (n.objects || n.file != ""):
		return nil, nil
	case len(n.clusters) == 0:
		return nil, errors.New("-cluster-cidr is missing: give the pods' network, as 10.244.0.0/16")
	case len(n.clusters) > 2, dual && n.clusters[0].Addr().Is4() == n.clusters[1].Addr().Is4():
		return nil, fmt.Errorf("-cluster-cidr: %v: give one network, or one of each family", n.clusters)
	case n.mask != 0 && (dual || n.mask4 != 0 || n.mask6 != 0):
		return nil, errors.New("-node-cidr-mask-size: give -node-cidr-mask-size-ipv4 and -node-cidr-mask-size-ipv6 instead")
	}
	has := func(v4 bool) bool {
		return slices.ContainsFunc(n.clusters, func(p netip.Prefix) bool { return p.Addr().Is4() == v4 })
	}
	if n.mask4 != 0 && !has(true) || n.mask6 != 0 && !has(false) {
		return nil, errors.New("-node-cidr-mask-size-ipv4 and -ipv6: give the one of the family of -cluster-cidr")
	}
	var sets []*blocks
	var errs []error
	for _, p := range n.clusters {
		mask, flagName := cmp.Or(n.mask4, n.mask, defaultMask4), "-node-cidr-mask-size-ipv4"
		if !p.Addr().Is4() {
			mask, flagName = cmp.Or(n.mask6, n.mask, defaultMask6), "-node-cidr-mask-size-ipv6"
		}
		if !dual && n.mask != 0 {
			flagName = "-node-cidr-mask-size"
		}
		b, err := newBlocks(p, mask)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", flagName, err))
		}
		sets = append(sets, b)
	}
	return sets, errors.Join(errs...)
}

// table returns a table without nodes.
func (n *networks) table() (*table, error) {
	sets, err := n.blocks()
	if err != nil {
		return nil, err
	}
	t := newTable(sets, n.services)
	var errs []error
	for i := range n.ranges {
		o := &n.ranges[i]
		fault := rest.CheckName("ClusterCIDR", o.Metadata.Name)
		if fault == nil && t.rangeNamed(o.Metadata.Name) != nil {
			fault = errors.New("this name occurs twice")
		}
		if fault == nil {
			fault = t.putRange(o).fault
		}
		if fault != nil {
			errs = append(errs, fmt.Errorf("-cluster-cidr-file: items[%d]: %w", i, fault))
		}
	}
	return t, errors.Join(errs...)
}

// readFile reads the ClusterCIDRs of the file, unless it has not changed. They are used as they are, because nodeipam
// makes no changes to them.
func (n *networks) readFile() error {
	if n.file == "" {
		return nil
	}
	text, err := smallfile.Read(n.file, maxRangeFile)
	if err == nil && n.ranges != nil && bytes.Equal(text, n.text) {
		return nil
	}
	raw := text
	if err == nil {
		raw, err = yaml.ToJSON(text)
	}
	var list struct {
		Items []clusterCIDR `json:"items"`
	}
	if err == nil {
		err = json.Unmarshal(raw, &list)
	}
	if err == nil && len(list.Items) == 0 {
		err = errors.New("items is empty: give a list of ClusterCIDR objects")
	}
	if err != nil {
		return fmt.Errorf("-cluster-cidr-file: %w", err)
	}
	for i := range list.Items {
		m := &list.Items[i].Metadata
		m.ResourceVersion, m.Finalizers = "", []string{rangeFinalizer}
	}
	n.text, n.ranges = text, list.Items
	return nil
}

// reload reads the file again, and reports whether it has changed. While it is invalid, the former ranges stay.
func (n *networks) reload() (changed bool, err error) {
	next := *n
	if err = next.readFile(); err != nil || bytes.Equal(next.text, n.text) {
		return false, err
	}
	if _, err = next.table(); err != nil {
		return false, err
	}
	*n = next
	return true, nil
}

// maxRangeFile bounds the file of ClusterCIDRs in bytes.
const maxRangeFile = 1 << 20
