package multi

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/netlist"
	"github.com/cnibox/cnibox/roles/meta/multi/nad"
)

// Conf is multi's network configuration: Multus's keys and additional ones.
type Conf struct {
	roles.NetConf
	// ClusterNetwork is the default network, which gives the pod its address. The value is the name
	// of a NetworkAttachmentDefinition in multusNamespace, the name of a configuration in confDir,
	// or the absolute path of a configuration or a directory. Of a directory the first
	// configuration by name is used.
	ClusterNetwork string `json:"clusterNetwork,omitempty"`
	// DefaultNetworks are additional networks for every pod. The values have the same forms as
	// clusterNetwork.
	DefaultNetworks []string `json:"defaultNetworks,omitempty"`
	// Delegates are complete network configurations in place of clusterNetwork and defaultNetworks.
	// The first one is the default network.
	Delegates []json.RawMessage `json:"delegates,omitempty"`
	// ConfDir is the directory of configurations that are found by name. Default:
	// /etc/cni/multus/net.d.
	ConfDir string `json:"confDir,omitempty"`
	// BinDir is a directory of plugins that is searched before CNI_PATH. Default: none.
	BinDir string `json:"binDir,omitempty"`
	// Kubeconfig is the path of a kubeconfig for the Kubernetes API. Without it, the pods'
	// annotations come from the runtime and the NetworkAttachmentDefinitions from networksDir.
	Kubeconfig string `json:"kubeconfig,omitempty"`
	// NamespaceIsolation forbids pods to use networks of other namespaces. Default: false.
	NamespaceIsolation bool `json:"namespaceIsolation,omitempty"`
	// GlobalNamespaces are namespaces whose networks every pod may use despite namespaceIsolation,
	// separated by commas. Default: default.
	GlobalNamespaces *string `json:"globalNamespaces,omitempty"`
	// SystemNamespaces are namespaces whose pods get no defaultNetworks. Default: kube-system.
	SystemNamespaces []string `json:"systemNamespaces,omitempty"`
	// MultusNamespace is the namespace of the objects of clusterNetwork and defaultNetworks.
	// Default: kube-system.
	MultusNamespace string `json:"multusNamespace,omitempty"`
	// ReadinessIndicatorFile is a file that must exist before pods are attached. The default
	// network creates it. Default: none.
	ReadinessIndicatorFile string `json:"readinessindicatorfile,omitempty"`
	// RuntimeConfig is set by the runtime.
	RuntimeConfig map[string]json.RawMessage `json:"runtimeConfig,omitempty"`
	// Args are arguments for all plugins. args.cni may have the pod's annotations by their keys.
	Args struct {
		// CNI is read if the runtime passes no annotations.
		CNI map[string]json.RawMessage `json:"cni,omitempty"`
	} `json:"args,omitzero"`

	// NetworksDir is the directory of network definitions: <namespace>/<name>.conflist, .conf,
	// .json, .yaml or .yml. Default: /etc/cni/net.d/multi.d.
	NetworksDir string `json:"networksDir,omitempty"`
	// EligibleNetworks are the networks that a pod may select with the annotation "cni" (CNI-Genie); the first
	// selected one is its default network. The values have the same forms as clusterNetwork. Default: none.
	EligibleNetworks []string `json:"eligibleNetworks,omitempty"`
	// CNIDir is the directory of Multus's cache. DEL and CHECK take over the containers that Multus
	// attached. The records of this role are in the state directory. Default: /var/lib/cni/multus.
	CNIDir string `json:"cniDir,omitempty"`
	// InterfacePrefix is the prefix of interface names that the pod does not specify. A number from
	// 1 follows. Default: net.
	InterfacePrefix string `json:"interfacePrefix,omitempty"`
	// InOrder attaches the networks one after the other and detaches them in reverse order. By
	// default, networks with third-party plugins are attached at the same time, after the default
	// network, unless one of them uses the interface of another network (linkInContainer).
	// Default: false.
	InOrder bool `json:"inOrder,omitempty"`

	// LogFile has no effect: messages go to standard error.
	LogFile string `json:"logFile,omitempty"`
	// LogLevel has no effect: set CNIBOX_LOG.
	LogLevel string `json:"logLevel,omitempty"`
	// LogToStderr has no effect.
	LogToStderr json.RawMessage `json:"logToStderr,omitempty"`
	// LogOptions has no effect.
	LogOptions json.RawMessage `json:"logOptions,omitempty"`
	// RetryDeleteOnError has no effect: a failed network always stays recorded for the next DEL.
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
	// PerNodeCertificate has no effect: the kubeconfig has the credentials.
	PerNodeCertificate json.RawMessage `json:"perNodeCertificate,omitempty"`
	// AuxiliaryCNIChainName is not supported: add the plugins to the list.
	AuxiliaryCNIChainName string `json:"auxiliaryCNIChainName,omitempty"`

	// lists are the parsed Delegates.
	lists []*netlist.List
}

// ignored are the keys that have no effect.
var ignored = []string{ //nolint:gochecknoglobals // a constant
	"logFile", "logLevel", "logToStderr", "logOptions", "retryDeleteOnError",
	"socketDir", "chrootDir", "metricsPort", "enablePprof", "connectionLimit", "perNodeCertificate",
}

// readConf decodes a configuration and sets defaults. With a ConfError it returns the decodable
// part.
func readConf(raw []byte) (*Conf, error) {
	c := new(Conf)
	err := roles.Decode(raw, c)
	preset(&c.ConfDir, "/etc/cni/multus/net.d")
	preset(&c.CNIDir, "/var/lib/cni/multus")
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

// Validate reports all faults.
func (c *Conf) Validate() error {
	var f roles.Faults
	if c.ClusterNetwork == "" && len(c.Delegates) == 0 {
		f.Addf("clusterNetwork", "is missing: set it to the default network, or add that to \"delegates\"")
	}
	if c.ClusterNetwork == "" && len(c.DefaultNetworks) > 0 {
		f.Addf("defaultNetworks", "need clusterNetwork: add the networks to \"delegates\" instead")
	}
	if c.AuxiliaryCNIChainName != "" {
		f.Addf("auxiliaryCNIChainName", "is not supported: add these plugins to the networks' lists")
	}
	for path, dir := range map[string]string{"confDir": c.ConfDir, "binDir": c.BinDir, "cniDir": c.CNIDir, "networksDir": c.NetworksDir, "kubeconfig": c.Kubeconfig, "readinessindicatorfile": c.ReadinessIndicatorFile} {
		if dir != "" && !filepath.IsAbs(dir) {
			f.Addf(path, "%q is not an absolute path", dir)
		}
	}
	if err := roles.LinkName(c.InterfacePrefix + "99"); err != nil {
		f.Addf("interfacePrefix", "%q cannot be the prefix of an interface name: %v", c.InterfacePrefix, err)
	}
	c.lists = nil
	for i, raw := range c.Delegates {
		l, err := netlist.Parse(raw, c.CNIVersion)
		addFaults(&f, fmt.Sprintf("delegates[%d]", i), err)
		if err == nil && slices.ContainsFunc(l.Unfused().Plugins, func(p netlist.Plugin) bool { return slices.Contains(Role().Names, p.Type) }) {
			f.Addf(fmt.Sprintf("delegates[%d]", i), "uses this plugin itself: use a network of another plugin")
		}
		c.lists = append(c.lists, l)
	}
	return f.Err()
}

// addFaults adds the faults of a part of the configuration, with path before their paths.
func addFaults(f *roles.Faults, path string, err error) {
	for _, e := range roles.SplitJoined(err) {
		if ce, ok := e.(*roles.ConfError); ok { //nolint:errorlint // one of those joined
			f.Addf(path+"."+ce.Path, "%s", ce.Reason)
			continue
		}
		f.Addf(path, "%v", e)
	}
}

// isGlobal reports whether every pod may use the namespace's networks.
func (c *Conf) isGlobal(namespace string) bool {
	for ns := range strings.SplitSeq(*c.GlobalNamespaces, ",") {
		if strings.TrimSpace(ns) == namespace {
			return true
		}
	}
	return false
}

// isSystem reports whether pods of the namespace get no default networks.
func (c *Conf) isSystem(namespace string) bool { return slices.Contains(c.SystemNamespaces, namespace) }
