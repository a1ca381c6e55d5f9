package multi

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/meta/multi/nad"
	"github.com/cnibox/cnibox/roles/netlist"
)

// Conf is multi's network configuration: Multus's keys, and some of our own.
type Conf struct {
	roles.NetConf
	// ClusterNetwork is the default network, which gives the pod its address: the
	// name of a NetworkAttachmentDefinition in multusNamespace or of a
	// configuration in confDir, or the absolute path of a configuration or of a
	// directory, whose first one it is.
	ClusterNetwork string `json:"clusterNetwork,omitempty"`
	// DefaultNetworks are attached to every pod beside it, named in the same ways.
	DefaultNetworks []string `json:"defaultNetworks,omitempty"`
	// Delegates are network configurations themselves, in place of clusterNetwork
	// and defaultNetworks; the first is the default network.
	Delegates []json.RawMessage `json:"delegates,omitempty"`
	// ConfDir is where configurations are looked for by their names. Default
	// /etc/cni/multus/net.d.
	ConfDir string `json:"confDir,omitempty"`
	// BinDir is looked through for plugins before CNI_PATH. Default none.
	BinDir string `json:"binDir,omitempty"`
	// Kubeconfig leads to the Kubernetes API. Without it, pods' annotations come
	// from the runtime and NetworkAttachmentDefinitions from networksDir.
	Kubeconfig string `json:"kubeconfig,omitempty"`
	// NamespaceIsolation forbids pods the networks of other namespaces. Default false.
	NamespaceIsolation bool `json:"namespaceIsolation,omitempty"`
	// GlobalNamespaces are namespaces whose networks every pod may have all the
	// same, separated by commas. Default default.
	GlobalNamespaces *string `json:"globalNamespaces,omitempty"`
	// SystemNamespaces are those whose pods get no defaultNetworks. Default
	// kube-system.
	SystemNamespaces []string `json:"systemNamespaces,omitempty"`
	// MultusNamespace has the objects of clusterNetwork and defaultNetworks.
	// Default kube-system.
	MultusNamespace string `json:"multusNamespace,omitempty"`
	// ReadinessIndicatorFile has to exist before pods are attached, for the default
	// network's sake. Default none.
	ReadinessIndicatorFile string `json:"readinessindicatorfile,omitempty"`
	// RuntimeConfig is what the runtime fills in.
	RuntimeConfig map[string]json.RawMessage `json:"runtimeConfig,omitempty"`
	// Args hold what runtimes give to all plugins; args.cni may hold the pod's
	// annotations, by their keys.
	Args struct {
		// CNI is read where the runtime hands no annotations over.
		CNI map[string]json.RawMessage `json:"cni,omitempty"`
	} `json:"args,omitzero"`

	// NetworksDir has network definitions: <namespace>/<name>.conflist, .conf,
	// .json, .yaml or .yml. Default /etc/cni/net.d/multi.d.
	NetworksDir string `json:"networksDir,omitempty"`
	// EligibleNetworks are those that a pod may choose by the annotation "cni"
	// (CNI-Genie), named like clusterNetwork. Default none.
	EligibleNetworks []string `json:"eligibleNetworks,omitempty"`
	// InterfacePrefix begins the names of interfaces that nobody names; a number
	// from 1 follows. Default net.
	InterfacePrefix string `json:"interfacePrefix,omitempty"`
	// InOrder attaches one network after the other and detaches in reverse. By
	// default networks whose plugins are other programs are attached at the same
	// time, after the default network, unless one stands on another's interface
	// (linkInContainer). Default false.
	InOrder bool `json:"inOrder,omitempty"`

	// CNIDir has no effect: what is kept is in the state directory.
	CNIDir string `json:"cniDir,omitempty"`
	// LogFile has no effect: messages go to standard error.
	LogFile string `json:"logFile,omitempty"`
	// LogLevel has no effect: see CNIBOX_LOG.
	LogLevel string `json:"logLevel,omitempty"`
	// LogToStderr has no effect.
	LogToStderr json.RawMessage `json:"logToStderr,omitempty"`
	// LogOptions has no effect.
	LogOptions json.RawMessage `json:"logOptions,omitempty"`
	// RetryDeleteOnError has no effect: what failed is always kept for the next DEL.
	RetryDeleteOnError json.RawMessage `json:"retryDeleteOnError,omitempty"`
	// SocketDir has no effect: there is no daemon.
	SocketDir json.RawMessage `json:"socketDir,omitempty"`
	// ChrootDir has no effect: there is no daemon.
	ChrootDir json.RawMessage `json:"chrootDir,omitempty"`
	// MetricsPort has no effect: there is no daemon.
	MetricsPort json.RawMessage `json:"metricsPort,omitempty"`
	// EnablePprof has no effect: there is no daemon.
	EnablePprof json.RawMessage `json:"enablePprof,omitempty"`
	// ConnectionLimit has no effect: there is no daemon.
	ConnectionLimit json.RawMessage `json:"connectionLimit,omitempty"`
	// PerNodeCertificate has no effect: kubeconfig says who asks.
	PerNodeCertificate json.RawMessage `json:"perNodeCertificate,omitempty"`
	// AuxiliaryCNIChainName is not supported: write the plugins into the list.
	AuxiliaryCNIChainName string `json:"auxiliaryCNIChainName,omitempty"`

	// lists are Delegates, read.
	lists []*netlist.List
}

// ignored are the keys that have no effect.
var ignored = []string{ //nolint:gochecknoglobals // a constant
	"cniDir", "logFile", "logLevel", "logToStderr", "logOptions", "retryDeleteOnError",
	"socketDir", "chrootDir", "metricsPort", "enablePprof", "connectionLimit", "perNodeCertificate",
}

// readConf decodes a configuration and fills in defaults; with a ConfError there is
// what could be decoded.
func readConf(raw []byte) (*Conf, error) {
	c := new(Conf)
	err := roles.Decode(raw, c)
	preset(&c.ConfDir, "/etc/cni/multus/net.d")
	preset(&c.MultusNamespace, "kube-system")
	preset(&c.NetworksDir, nad.DefaultDir)
	preset(&c.InterfacePrefix, "net")
	preset(&c.CNIVersion, "0.1.0")
	if c.SystemNamespaces == nil {
		c.SystemNamespaces = []string{"kube-system"}
	}
	if c.GlobalNamespaces == nil {
		c.GlobalNamespaces = new(string)
		*c.GlobalNamespaces = "default"
	}
	return c, err
}

func preset(s *string, value string) {
	if *s == "" {
		*s = value
	}
}

// Validate tells every fault.
func (c *Conf) Validate() error {
	var f roles.Faults
	if c.ClusterNetwork == "" && len(c.Delegates) == 0 {
		f.Addf("clusterNetwork", "is missing: name the default network, or write it into \"delegates\"")
	}
	if c.ClusterNetwork == "" && len(c.DefaultNetworks) > 0 {
		f.Addf("defaultNetworks", "come beside clusterNetwork: write them into \"delegates\"")
	}
	if c.AuxiliaryCNIChainName != "" {
		f.Addf("auxiliaryCNIChainName", "is not supported: write these plugins into the networks' lists")
	}
	for path, dir := range map[string]string{"confDir": c.ConfDir, "binDir": c.BinDir, "networksDir": c.NetworksDir, "kubeconfig": c.Kubeconfig, "readinessindicatorfile": c.ReadinessIndicatorFile} {
		if dir != "" && !filepath.IsAbs(dir) {
			f.Addf(path, "%q is not an absolute path", dir)
		}
	}
	if err := roles.LinkName(c.InterfacePrefix + "99"); err != nil {
		f.Addf("interfacePrefix", "%q cannot begin a name: %v", c.InterfacePrefix, err)
	}
	c.lists = nil
	for i, raw := range c.Delegates {
		l, err := netlist.Parse(raw, c.CNIVersion)
		within(&f, fmt.Sprintf("delegates[%d]", i), err)
		if err == nil && slices.ContainsFunc(l.Unfused().Plugins, func(p netlist.Plugin) bool { return slices.Contains(Role().Names, p.Type) }) {
			f.Addf(fmt.Sprintf("delegates[%d]", i), "is a network of this plugin itself: name one of another plugin")
		}
		c.lists = append(c.lists, l)
	}
	return f.Err()
}

// within adds a part's faults, their paths below its own.
func within(f *roles.Faults, path string, err error) {
	if err == nil {
		return
	}
	list := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok { //nolint:errorlint // only the outermost is taken apart
		list = joined.Unwrap()
	}
	for _, e := range list {
		if ce, ok := e.(*roles.ConfError); ok { //nolint:errorlint // one of those joined
			f.Addf(path+"."+ce.Path, "%s", ce.Reason)
			continue
		}
		f.Addf(path, "%v", e)
	}
}

// isGlobal tells whether every pod may have a namespace's networks.
func (c *Conf) isGlobal(namespace string) bool {
	for ns := range strings.SplitSeq(*c.GlobalNamespaces, ",") {
		if strings.TrimSpace(ns) == namespace {
			return true
		}
	}
	return false
}

// isSystem tells whether a namespace's pods get no default networks.
func (c *Conf) isSystem(namespace string) bool { return slices.Contains(c.SystemNamespaces, namespace) }
