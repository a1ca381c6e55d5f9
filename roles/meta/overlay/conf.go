package overlay

import (
	"encoding/json"
	"path/filepath"

	"github.com/cnibox/cnibox/roles"
)

// Conf is the network configuration of the types vxlan and flannel: flannel's keys, and overlayFile.
type Conf struct {
	roles.NetConf
	// OverlayFile is where the agent tells this node's pod networks. Default:
	// overlay.json in the run directory, /run/cnibox.
	OverlayFile string `json:"overlayFile,omitempty"`
	// SubnetFile is where flanneld tells them, and the agent too. It is read
	// instead of the agent's own file when it is given, or when that does not
	// exist. Default: /run/flannel/subnet.env.
	SubnetFile string `json:"subnetFile,omitempty"`
	// DataDir is where the flannel plugin kept what it attached; DEL and GC take
	// that over. Nothing is written there. Default: /var/lib/cni/flannel.
	DataDir string `json:"dataDir,omitempty"`
	// Delegate are the keys of the plugin that makes the interface. Defaults:
	// type bridge, ipMasq unless the agent does it, mtu the overlay's; for the
	// bridge isGateway, and forceAddress: the bridge follows a changed subnet.
	// name and ipam are not accepted.
	Delegate Object `json:"delegate,omitempty"`
	// IPAM are the keys of the IPAM plugin. Default: type host-local. ranges is
	// this node's subnets whatever is given; to routes the overlay's networks are added.
	IPAM Object `json:"ipam,omitempty"`
	// RuntimeConfig is handed to the delegate.
	RuntimeConfig Object `json:"runtimeConfig,omitempty"`
}

// Object is a JSON object whose values are handed on as they are.
type Object map[string]json.RawMessage

// defaults of flannel's files.
const (
	defaultSubnetFile = "/run/flannel/subnet.env"
	defaultDataDir    = "/var/lib/cni/flannel"
)

// decode decodes a configuration and fills in defaults.
func decode(raw []byte) (*Conf, error) {
	c := &Conf{}
	err := roles.Decode(raw, c)
	if c.DataDir == "" {
		c.DataDir = defaultDataDir
	}
	return c, err
}

// Validate tells every fault.
func (c *Conf) Validate() error {
	var f roles.Faults
	for _, p := range []struct{ path, value string }{{"overlayFile", c.OverlayFile}, {"subnetFile", c.SubnetFile}, {"dataDir", c.DataDir}} {
		if p.value != "" && !filepath.IsAbs(p.value) {
			f.Addf(p.path, "%q is no absolute path", p.value)
		}
	}
	if c.OverlayFile != "" && c.SubnetFile != "" {
		f.Addf("subnetFile", "contradicts overlayFile: give the one that is to be read")
	}
	for _, key := range []string{"name", "ipam"} {
		if _, ok := c.Delegate[key]; ok {
			f.Addf("delegate."+key, "is not accepted: put it beside delegate, at the top level")
		}
	}
	if raw, ok := c.Delegate["type"]; ok {
		var typ string
		if json.Unmarshal(raw, &typ) != nil || typ == "" {
			f.Addf("delegate.type", "%s is no name of a plugin", raw)
		}
	}
	if raw, ok := c.IPAM["routes"]; ok {
		var routes []json.RawMessage
		if json.Unmarshal(raw, &routes) != nil {
			f.Addf("ipam.routes", "is no list")
		}
	}
	return f.Err()
}

// delegateType is the plugin that makes the interface.
func (c *Conf) delegateType() string {
	var typ string
	if json.Unmarshal(c.Delegate["type"], &typ) != nil || typ == "" {
		return "bridge"
	}
	return typ
}
