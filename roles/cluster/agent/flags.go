package agent

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/cluster/process"
	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/kube"
)

// settings are the agent's flags. A flag that flannel has too has flannel's name.
type settings struct {
	registry  registryFlags
	underlay  selection
	nodeName  string
	netConf   string
	subnetEnv string
	// An empty overlayFile means the default in the node's run directory.
	overlayFile     string
	ipMasq, forward bool
	keepPorts       bool
	sourceFilter    bool
	probe           bool
	// vxlanPort and txChecksum replace the configuration's if they are given.
	vxlanPort  uint16
	txChecksum string
	exceptions []netip.Prefix
	healthIP   netip.Addr
	healthPort uint
	// cniBinDir and cniConf are empty if the agent installs no plugins and no network.
	cniBinDir, cniConf, cniConfDir string
	cniPlugins                     []string
	uninstall, rangesOnly          bool
	policy                         policyFlags
	egress                         egressFlags
	// ignored are the given flags that have no effect.
	ignored []string
	// demands is no flag: see Role.
	demands func(file []byte) []store.RangeDemand
}

// registryFlags select and configure the registry.
type registryFlags struct {
	kube                            bool
	kubeconfig, apiURL, annotations string
	networkUnavailable              bool
	rangeNamespace                  string
	dir                             string
	etcd                            process.Etcd
	// nodeipam is true if nodeipam assigns the pod networks in etcd or the directory, by these labels of the node.
	nodeipam    bool
	labels      map[string]string
	renewMargin time.Duration
}

// Defaults of flags.
const (
	defaultNetConf   = "/etc/kube-flannel/net-conf.json"
	defaultSubnetEnv = "/run/flannel/subnet.env"
	defaultPrefix    = "flannel.alpha.coreos.com"
	// defaultEtcd is flanneld's default for etcd's addresses.
	defaultEtcd = "http://127.0.0.1:4001,http://127.0.0.1:2379"
	// flanneld is the name of the role under which etcd is the default registry.
	flanneld = "flanneld"
)

// withoutEffect lists flannel's flags that have no effect in the agent.
func withoutEffect() []string {
	return []string{
		"iptables-resync", "v", "vmodule", "log_backtrace_at", "logtostderr", "alsologtostderr", "stderrthreshold",
	}
}

// parseFlags reads the flags. A flag that is not given is read from its FLANNELD_ environment
// variable. All faults are reported at once.
func parseFlags(role, version string, args, env []string) (*settings, error) {
	s := &settings{}
	f := s.flags(role)
	errs, err := process.Parse(f, "connect this node's pod network with the other nodes'\n\n"+
		"every flag can be set in the environment: FLANNELD_IP_MASQ=true sets -ip-masq", version, args)
	if err != nil {
		return nil, err
	}
	errs = append(errs, fromEnvironment(f, env)...)
	f.Visit(func(one *flag.Flag) {
		if slices.Contains(withoutEffect(), one.Name) {
			s.ignored = append(s.ignored, one.Name)
		}
	})
	if errs = append(errs, s.complete(role)...); len(errs) > 0 {
		return nil, roles.Usagef("%w", errors.Join(errs...))
	}
	return s, nil
}

// fromEnvironment sets the flags that the command line does not contain.
func fromEnvironment(f *flag.FlagSet, env []string) (errs []error) {
	given := map[string]bool{"version": true}
	f.Visit(func(one *flag.Flag) { given[one.Name] = true })
	f.VisitAll(func(one *flag.Flag) {
		name := "FLANNELD_" + strings.ToUpper(strings.ReplaceAll(one.Name, "-", "_"))
		value := process.Getenv(env, name)
		if given[one.Name] || value == "" {
			return
		}
		if err := f.Set(one.Name, value); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	})
	return errs
}

// flags declares the flags.
func (s *settings) flags(role string) *flag.FlagSet {
	f := process.NewFlags(role)
	s.registry.register(f)
	s.underlay.register(f)
	s.policy.register(f)
	s.egress.register(f)
	f.BoolVar(&s.rangesOnly, "ranges-only", false, "lease blocks of cluster-wide ranges and do nothing else, beside another pod network")
	s.registerPaths(f)
	s.registerInstallation(f)
	f.BoolVar(&s.ipMasq, "ip-masq", false, "translate pods' addresses to the node's in traffic that leaves the pod network")
	f.BoolVar(&s.keepPorts, "ip-masq-fully-random-disable", false, "keep pods' source ports where they are free, instead of random ports")
	f.Func("ip-masq-except", "`network` that -ip-masq does not apply to; repeatable", func(v string) error {
		p, err := netip.ParsePrefix(v)
		if err != nil || p != p.Masked() {
			return fmt.Errorf("%.60q is not a network: use for example 192.0.2.0/24", v)
		}
		s.exceptions = append(s.exceptions, p)
		return nil
	})
	f.BoolVar(&s.forward, "iptables-forward-rules", true, "accept pods' packets in iptables' FORWARD chain")
	s.registerVXLAN(f)
	f.TextVar(&s.healthIP, "healthz-ip", netip.IPv4Unspecified(), "`address` for /healthz, /readyz and /peersz")
	f.UintVar(&s.healthPort, "healthz-port", 0, "`port` for /healthz, /readyz and /peersz; 0 disables them")
	f.BoolFunc("ip-blackhole-route", "not supported: the agent makes no blackhole route", func(v string) error {
		if on, err := strconv.ParseBool(v); err != nil || on {
			return errors.New("the agent makes no blackhole route; leave the flag out")
		}
		return nil
	})
	for _, name := range withoutEffect() {
		f.Var(&ignoredFlag{bool: strings.HasSuffix(name, "logtostderr")}, name, "accepted, without effect")
	}
	return f
}

// registerVXLAN declares the flags of the backend vxlan.
func (s *settings) registerVXLAN(f *flag.FlagSet) {
	f.BoolVar(&s.probe, "probe-peers", true, "ask other nodes through the VXLAN tunnel every few seconds whether they answer")
	f.BoolVar(&s.sourceFilter, "vxlan-source-filter", true, "drop tunnelled packets whose sender is not a known node")
	f.Func("vxlan-port", "UDP `port` of VXLAN, the same on all nodes, instead of the configuration's", func(v string) error {
		n, err := strconv.ParseUint(v, 10, 16)
		if err != nil || n == 0 {
			return fmt.Errorf("%.20q is not a port: use 1 to 65535", v)
		}
		s.vxlanPort = uint16(n)
		return nil
	})
	f.BoolFunc("vxlan-tx-checksum-offload", "whether VXLAN devices leave checksums to the interface below, instead of the configuration's", func(v string) error {
		on, err := strconv.ParseBool(v)
		s.txChecksum = cluster.Switch(on)
		return err
	})
}

// withFlags returns the network's configuration with the values that flags replace.
func (s *settings) withFlags(c *cluster.Config) *cluster.Config {
	own := *c
	own.Backend.OwnPort = s.vxlanPort
	own.Backend.TxChecksum = cmp.Or(s.txChecksum, own.Backend.TxChecksum)
	return &own
}

// registerPaths declares the flags for the node's name and the paths of its files.
func (s *settings) registerPaths(f *flag.FlagSet) {
	f.StringVar(&s.nodeName, "node-name", "", "this node's `name` in the registry; default: NODE_NAME, then the host name")
	f.StringVar(&s.netConf, "net-config-path", defaultNetConf, "`path` of the network's configuration if the registry holds none")
	f.StringVar(&s.subnetEnv, "subnet-file", defaultSubnetEnv, "`path` of flannel's file for CNI plugins; empty writes none")
	f.StringVar(&s.overlayFile, "overlay-file", "", "`path` of the file for the CNI types vxlan and flannel; default: overlay.json in the run directory")
}

// registerInstallation declares the flags of an agent that installs cnibox on its node.
func (s *settings) registerInstallation(f *flag.FlagSet) {
	f.StringVar(&s.cniBinDir, "cni-bin-dir", "", "install the plugins in this `directory` when pods can be attached, and keep them installed")
	s.cniPlugins = []string{"chain", "vxlan", "bridge", "host-local", "portmap", "bandwidth", "loopback"}
	f.Func("cni-plugins", "comma-separated `types` to install; other programs' files are kept aside ("+strings.Join(s.cniPlugins, ",")+")", func(v string) error {
		s.cniPlugins = process.SplitList(v)
		return nil
	})
	f.StringVar(&s.cniConf, "cni-conf", "", "`path` of a network that is installed last, under its name in -cni-conf-dir")
	f.StringVar(&s.cniConfDir, "cni-conf-dir", "/etc/cni/net.d", "`directory` of the container runtime's networks")
	f.BoolVar(&s.uninstall, "uninstall", false, "remove what the agent and the plugins made and installed when no pod is attached, then wait to be stopped")
}

// ignoredFlag accepts every value.
type ignoredFlag struct{ bool bool }

func (*ignoredFlag) String() string     { return "" }
func (*ignoredFlag) Set(string) error   { return nil }
func (i *ignoredFlag) IsBoolFlag() bool { return i.bool }

func (r *registryFlags) register(f *flag.FlagSet) {
	f.BoolVar(&r.kube, "kube-subnet-mgr", false, "use Kubernetes as the registry: pod networks come from Node objects")
	f.StringVar(&r.kubeconfig, "kubeconfig-file", "", "`path` of a kubeconfig; default: the pod's service account")
	f.StringVar(&r.apiURL, "kube-api-url", "", "`URL` of the API server, instead of the kubeconfig's")
	f.StringVar(&r.annotations, "kube-annotation-prefix", defaultPrefix, "`prefix` of the annotations of Node objects")
	f.BoolVar(&r.networkUnavailable, "set-node-network-unavailable", true, "clear the Node's condition NetworkUnavailable")
	f.StringVar(&r.rangeNamespace, "range-namespace", kube.DefaultNamespace, "`namespace` of the ConfigMaps with the blocks of cluster-wide ranges")
	f.StringVar(&r.dir, "cluster-dir", "", "use the directory at this `path` as the registry: config.json and nodes/")
	f.BoolVar(&r.nodeipam, "nodeipam", false, "wait for the pod network that cnibox nodeipam assigns in etcd or the directory")
	f.Func("node-labels", "comma-separated `labels` KEY=VALUE of this node, for the ranges of nodeipam", func(v string) error {
		r.labels = map[string]string{}
		for _, one := range process.SplitList(v) {
			key, value, ok := strings.Cut(one, "=")
			if !ok || key == "" {
				return fmt.Errorf("%.60q is not a label: use for example zone=a", one)
			}
			r.labels[key] = value
		}
		return nil
	})
	r.etcd.Register(f, "FLANNELD_ETCD_PASSWORD")
	r.renewMargin = 60 * time.Minute
	f.Func("subnet-lease-renew-margin", "latest renewal of a lease in etcd, in `minutes` before it expires (60)", func(v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 || n > 1439 {
			return fmt.Errorf("%.20q: use 1 to 1439 minutes", v)
		}
		r.renewMargin = time.Duration(n) * time.Minute
		return nil
	})
}

// complete checks the combination of flags and sets defaults that depend on it.
func (s *settings) complete(role string) (errs []error) {
	r := &s.registry
	var chosen []string
	for name, on := range map[string]bool{"-kube-subnet-mgr": r.kube, "-cluster-dir": r.dir != "", "-etcd-endpoints": len(r.etcd.Endpoints) > 0} {
		if on {
			chosen = append(chosen, name)
		}
	}
	slices.Sort(chosen)
	if len(chosen) > 1 && r.kube && len(r.etcd.Endpoints) > 0 && r.dir == "" {
		r.etcd.Endpoints, chosen = nil, nil // flanneld prefers Kubernetes, too
	} else if len(chosen) > 1 {
		errs = append(errs, fmt.Errorf("%s: give one registry", strings.Join(chosen, " and ")))
	}
	if len(chosen) == 0 && !r.kube && role == flanneld {
		r.etcd.Endpoints = process.SplitList(defaultEtcd)
	}
	if s.rangesOnly && !r.kube && r.dir == "" && len(r.etcd.Endpoints) == 0 {
		errs = append(errs, errors.New("-ranges-only: give the registry of all nodes: -kube-subnet-mgr, -etcd-endpoints or -cluster-dir"))
	}
	paths := r.etcd.Paths()
	maps.Copy(paths, map[string]string{
		"-cluster-dir":     r.dir,
		"-net-config-path": s.netConf,
		"-subnet-file":     s.subnetEnv,
		"-overlay-file":    s.overlayFile,
		"-cni-bin-dir":     s.cniBinDir,
		"-cni-conf":        s.cniConf,
		"-cni-conf-dir":    s.cniConfDir,
		"-kubeconfig-file": r.kubeconfig,
		"-policy-dir":      s.policy.dir,
	})
	errs = append(errs, process.CheckPaths(paths)...)
	if s.cniConf != "" && filepath.Ext(s.cniConf) != ".conflist" {
		errs = append(errs, fmt.Errorf("-cni-conf: %q does not end in .conflist", s.cniConf))
	}
	if s.healthPort > 65535 {
		errs = append(errs, fmt.Errorf("-healthz-port: %d is not a port", s.healthPort))
	}
	if r.kube && (r.nodeipam || r.labels != nil) {
		errs = append(errs, errors.New("-nodeipam and -node-labels: with -kube-subnet-mgr the Node object has both, leave the flags out"))
	}
	if err := r.etcd.Check(); err != nil {
		errs = append(errs, err)
	}
	return append(errs, s.egress.check(r)...)
}

// healthAddr returns the address for health checks, or "" if they are disabled.
func (s *settings) healthAddr() string {
	if s.healthPort == 0 {
		return ""
	}
	return net.JoinHostPort(s.healthIP.String(), strconv.FormatUint(uint64(s.healthPort), 10))
}

// register declares the flags that select the underlay.
func (s *selection) register(f *flag.FlagSet) {
	f.Func("iface", "`name` or address of the interface to the other nodes; repeatable, the first existing one counts", func(v string) error {
		s.ifaces = append(s.ifaces, process.SplitList(v)...)
		return nil
	})
	f.Func("iface-regex", "regular `expression` for an address or name of the interface; repeatable", func(v string) error {
		re, err := regexp.Compile(v)
		if err == nil {
			s.regexes = append(s.regexes, re)
		}
		return err
	})
	address := func(into *netip.Addr, is func(netip.Addr) bool, want string) func(string) error {
		return func(v string) (err error) {
			a, err := netip.ParseAddr(v)
			if err != nil || !is(a) || a.Zone() != "" || a.IsUnspecified() || a.IsMulticast() || a.IsLoopback() {
				return fmt.Errorf("%.60q is not an %s of a node", v, want)
			}
			*into = a
			return nil
		}
	}
	is6 := func(a netip.Addr) bool { return a.Is6() && !a.Is4In6() }
	f.Func("iface-can-reach", "`address` that the interface has a route to", address(&s.canReach, func(a netip.Addr) bool { return !a.Is4In6() }, "address"))
	f.Func("public-ip", "IPv4 `address` that the other nodes send to", address(&s.public4, netip.Addr.Is4, "IPv4 address"))
	f.Func("public-ipv6", "IPv6 `address` that the other nodes send to", address(&s.public6, is6, "IPv6 address"))
}
