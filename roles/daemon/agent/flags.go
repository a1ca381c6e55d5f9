package agent

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/daemon/process"
)

// settings are the agent's flags. The names are flannel's where it has one.
type settings struct {
	registry  registryFlags
	underlay  selection
	nodeName  string
	netConf   string
	subnetEnv string
	// overlayFile and socket are below the node's run directory when empty.
	overlayFile, socket string
	ipMasq, forward     bool
	keepPorts           bool
	sourceFilter        bool
	exceptions          []netip.Prefix
	healthIP            netip.Addr
	healthPort          uint
	// ignored are flags that were given and have no effect.
	ignored []string
}

// registryFlags say which registry is asked, and how.
type registryFlags struct {
	kube                            bool
	kubeconfig, apiURL, annotations string
	networkUnavailable              bool
	dir                             string
	etcd                            []string
	etcdPrefix                      string
	etcdCA, etcdCert, etcdKey       string
	etcdUser, etcdPassword          string
	renewMargin                     time.Duration
}

// What flags are without a value given.
const (
	defaultNetConf    = "/etc/kube-flannel/net-conf.json"
	defaultSubnetEnv  = "/run/flannel/subnet.env"
	defaultEtcdPrefix = "/coreos.com/network"
	defaultPrefix     = "flannel.alpha.coreos.com"
	// defaultEtcd is where flanneld looks for its registry.
	defaultEtcd = "http://127.0.0.1:4001,http://127.0.0.1:2379"
	// flanneld is the role's name that makes etcd the default registry.
	flanneld = "flanneld"
)

// withoutEffect are flannel's flags that have nothing to say here.
func withoutEffect() []string {
	return []string{
		"iptables-resync", "v", "vmodule", "log_backtrace_at", "logtostderr", "alsologtostderr", "stderrthreshold",
	}
}

// parseFlags reads flags, and for those that are not given FLANNELD_ variables
// of the environment. Every fault is told at once.
func parseFlags(role, version string, args, env []string) (*settings, error) {
	s := &settings{}
	f := s.flags()
	showVersion := f.Bool("version", false, "print the version")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil, process.Help("cnibox " + role + " [FLAG…]: keep this node's pod network connected with the other nodes'\n\n" +
				"every flag may come from the environment as well: FLANNELD_IP_MASQ=true is -ip-masq\n\nflags:" + process.Usage(f))
		}
		return nil, roles.Usagef("%w: 'cnibox %s -help' lists the flags", err, role)
	}
	if *showVersion {
		return nil, process.Help(version)
	}
	var errs []error
	if f.NArg() > 0 {
		errs = append(errs, fmt.Errorf("%q is no flag", f.Arg(0)))
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

// fromEnvironment sets the flags that the command line leaves alone.
func fromEnvironment(f *flag.FlagSet, env []string) (errs []error) {
	given := map[string]bool{"version": true}
	f.Visit(func(one *flag.Flag) { given[one.Name] = true })
	f.VisitAll(func(one *flag.Flag) {
		name := "FLANNELD_" + strings.ToUpper(strings.ReplaceAll(one.Name, "-", "_"))
		value := getenv(env, name)
		if given[one.Name] || value == "" {
			return
		}
		if err := f.Set(one.Name, value); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	})
	return errs
}

// getenv finds a variable, or ""; of a repeated name the first counts.
func getenv(env []string, name string) string {
	for _, kv := range env {
		if k, v, ok := strings.Cut(kv, "="); ok && k == name {
			return v
		}
	}
	return ""
}

// flags names what is read and where it goes.
func (s *settings) flags() *flag.FlagSet {
	f := flag.NewFlagSet("agent", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	s.registry.register(f)
	s.underlay.register(f)
	s.registerPlaces(f)
	f.BoolVar(&s.ipMasq, "ip-masq", false, "hide pods behind the node's address in traffic that leaves the pod network")
	f.BoolVar(&s.keepPorts, "ip-masq-fully-random-disable", false, "hide pods behind ports that are theirs where these are free, not random ones")
	f.Func("ip-masq-except", "`network` that pods reach under their own addresses; repeatable", func(v string) error {
		p, err := netip.ParsePrefix(v)
		if err != nil || p != p.Masked() {
			return fmt.Errorf("%.60q is no network: use one as 192.0.2.0/24", v)
		}
		s.exceptions = append(s.exceptions, p)
		return nil
	})
	f.BoolVar(&s.forward, "iptables-forward-rules", true, "let pods' packets pass where iptables' FORWARD chain refuses")
	f.BoolVar(&s.sourceFilter, "vxlan-source-filter", true, "drop tunnelled packets that come from no known node")
	f.TextVar(&s.healthIP, "healthz-ip", netip.IPv4Unspecified(), "`address` to answer /healthz and /readyz on")
	f.UintVar(&s.healthPort, "healthz-port", 0, "`port` of it; 0 answers nowhere")
	f.BoolFunc("ip-blackhole-route", "refused: bring no route for pod addresses that nobody has", func(v string) error {
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

// registerPlaces reads who the node is and where its files are.
func (s *settings) registerPlaces(f *flag.FlagSet) {
	f.StringVar(&s.nodeName, "node-name", "", "this node's `name` in the registry; else NODE_NAME, else the host's name")
	f.StringVar(&s.netConf, "net-config-path", defaultNetConf, "`path` of the network's configuration, where the registry holds none")
	f.StringVar(&s.subnetEnv, "subnet-file", defaultSubnetEnv, "`path` of flannel's file for CNI plugins; empty writes none")
	f.StringVar(&s.overlayFile, "overlay-file", "", "`path` of the file for the CNI types vxlan and flannel; else overlay.json in the run directory")
	f.StringVar(&s.socket, "socket", "", "`path` of the socket that status asks; else agent.sock in the run directory")
}

// ignoredFlag takes anything.
type ignoredFlag struct{ bool bool }

func (*ignoredFlag) String() string     { return "" }
func (*ignoredFlag) Set(string) error   { return nil }
func (i *ignoredFlag) IsBoolFlag() bool { return i.bool }

func (r *registryFlags) register(f *flag.FlagSet) {
	f.BoolVar(&r.kube, "kube-subnet-mgr", false, "Kubernetes is the registry: pod networks are the Node objects'")
	f.StringVar(&r.kubeconfig, "kubeconfig-file", "", "`path` of a kubeconfig; else the pod's service account")
	f.StringVar(&r.apiURL, "kube-api-url", "", "`URL` of the API server, instead of the kubeconfig's")
	f.StringVar(&r.annotations, "kube-annotation-prefix", defaultPrefix, "`prefix` of the annotations of Node objects")
	f.BoolVar(&r.networkUnavailable, "set-node-network-unavailable", true, "clear the Node's condition NetworkUnavailable")
	f.StringVar(&r.dir, "cluster-dir", "", "a directory at this `path` is the registry: config.json and nodes/")
	f.Func("etcd-endpoints", "etcd is the registry: comma-separated `URLs`", func(v string) error {
		if r.etcd = splitList(v); len(r.etcd) == 0 {
			return errors.New("names no URL: give http://127.0.0.1:2379, or leave the flag out")
		}
		return nil
	})
	f.StringVar(&r.etcdPrefix, "etcd-prefix", defaultEtcdPrefix, "`prefix` of the keys in etcd")
	f.StringVar(&r.etcdCA, "etcd-cafile", "", "`path` of the certificates that sign etcd's")
	f.StringVar(&r.etcdCert, "etcd-certfile", "", "`path` of the client's certificate")
	f.StringVar(&r.etcdKey, "etcd-keyfile", "", "`path` of its key")
	f.StringVar(&r.etcdUser, "etcd-username", "", "`name` of a user of etcd")
	f.StringVar(&r.etcdPassword, "etcd-password", "", "`password` of the user; better in FLANNELD_ETCD_PASSWORD")
	r.renewMargin = 60 * time.Minute
	f.Func("subnet-lease-renew-margin", "`minutes` before its end that a lease in etcd is renewed at the latest (60)", func(v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 || n > 1439 {
			return fmt.Errorf("%.20q: use 1 to 1439 minutes", v)
		}
		r.renewMargin = time.Duration(n) * time.Minute
		return nil
	})
}

func splitList(v string) (all []string) {
	for one := range strings.SplitSeq(v, ",") {
		if one = strings.TrimSpace(one); one != "" {
			all = append(all, one)
		}
	}
	return all
}

// complete judges what flags say together, and fills in what they leave open.
func (s *settings) complete(role string) (errs []error) {
	r := &s.registry
	var chosen []string
	for name, on := range map[string]bool{"-kube-subnet-mgr": r.kube, "-cluster-dir": r.dir != "", "-etcd-endpoints": len(r.etcd) > 0} {
		if on {
			chosen = append(chosen, name)
		}
	}
	slices.Sort(chosen)
	if len(chosen) > 1 && r.kube && len(r.etcd) > 0 && r.dir == "" {
		r.etcd, chosen = nil, nil // as flanneld does
	} else if len(chosen) > 1 {
		errs = append(errs, fmt.Errorf("%s: give one registry", strings.Join(chosen, " and ")))
	}
	if len(chosen) == 0 && !r.kube && role == flanneld {
		r.etcd = splitList(defaultEtcd)
	}
	for _, p := range []struct{ name, path string }{
		{"-cluster-dir", r.dir},
		{"-net-config-path", s.netConf},
		{"-subnet-file", s.subnetEnv},
		{"-overlay-file", s.overlayFile},
		{"-socket", s.socket},
		{"-kubeconfig-file", r.kubeconfig},
		{"-etcd-cafile", r.etcdCA},
		{"-etcd-certfile", r.etcdCert},
		{"-etcd-keyfile", r.etcdKey},
	} {
		if p.path != "" && !filepath.IsAbs(p.path) {
			errs = append(errs, fmt.Errorf("%s: %q is no absolute path", p.name, p.path))
		}
	}
	if s.healthPort > 65535 {
		errs = append(errs, fmt.Errorf("-healthz-port: %d is no port", s.healthPort))
	}
	if (r.etcdCert == "") != (r.etcdKey == "") {
		errs = append(errs, errors.New("-etcd-certfile and -etcd-keyfile: give both or neither"))
	}
	return errs
}

// healthAddr is where health is asked for, "" for nowhere.
func (s *settings) healthAddr() string {
	if s.healthPort == 0 {
		return ""
	}
	return net.JoinHostPort(s.healthIP.String(), strconv.FormatUint(uint64(s.healthPort), 10))
}

// register reads how the underlay is chosen.
func (s *selection) register(f *flag.FlagSet) {
	f.Func("iface", "`name` or address of the interface to the other nodes; repeatable, the first that is there counts", func(v string) error {
		s.ifaces = append(s.ifaces, splitList(v)...)
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
				return fmt.Errorf("%.60q is no %s of a node", v, want)
			}
			*into = a
			return nil
		}
	}
	is6 := func(a netip.Addr) bool { return a.Is6() && !a.Is4In6() }
	f.Func("iface-can-reach", "`address` that the interface leads to", address(&s.canReach, func(a netip.Addr) bool { return !a.Is4In6() }, "address"))
	f.Func("public-ip", "IPv4 `address` that the other nodes send to", address(&s.public4, netip.Addr.Is4, "IPv4 address"))
	f.Func("public-ipv6", "IPv6 `address` that the other nodes send to", address(&s.public6, is6, "IPv6 address"))
}
