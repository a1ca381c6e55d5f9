package overlay

import (
	"encoding/json"
	"path/filepath"

	"github.com/cnibox/cnibox/roles"
)

// Conf is the network configuration of the types vxlan and flannel: flannel's keys, and overlayFile.
type Conf struct {
	roles.NetConf
	// OverlayFile is the file in which the agent publishes this node's pod networks. Default:
	// overlay.json in the run directory, /run/cnibox.
	OverlayFile string `json:"overlayFile,omitempty"`
	// SubnetFile is the file in which flanneld or the agent publishes this node's pod networks. It
	// is read instead of overlayFile if it is given or if overlayFile does not exist. Default:
	// /run/flannel/subnet.env.
	SubnetFile string `json:"subnetFile,omitempty"`
	// DataDir is the directory in which the flannel plugin kept its attachments. DEL and GC take
	// these over. No file is written there. Default: /var/lib/cni/flannel.
	DataDir string `json:"dataDir,omitempty"`
	// Delegate has the keys of the plugin that makes the interface. Defaults: type bridge; ipMasq
	// unless the agent masquerades; mtu of the overlay. For the bridge also isGateway, and
	// forceAddress with forceAddressIn, so that the bridge follows a changed subnet but keeps the
	// address of another network. The keys name and ipam are not accepted.
	Delegate Object `json:"delegate,omitempty"`
	// IPAM has the keys of the IPAM plugin. Default: type host-local. ranges is always set to this
	// node's subnets. The overlay's networks are added to routes.
	IPAM Object `json:"ipam,omitempty"`
	// RuntimeConfig is passed to the delegate.
	RuntimeConfig Object `json:"runtimeConfig,omitempty"`
}

// Object is a JSON object whose values are passed on unchanged.
type Object map[string]json.RawMessage

// Defaults of flannel's paths.
const (
	defaultSubnetFile = "/run/flannel/subnet.env"
	defaultDataDir    = "/var/lib/cni/flannel"
)

// decode decodes a configuration and sets defaults.
func decode(raw []byte) (*Conf, error) {
	c := &Conf{}
	err := roles.Decode(raw, c)
	if c.DataDir == "" {
		c.DataDir = defaultDataDir
	}
	return c, err
}

// Validate reports all faults.
func (c *Conf) Validate() error {
	var f roles.Faults
	for _, p := range []struct{ path, value string }{{"overlayFile", c.OverlayFile}, {"subnetFile", c.SubnetFile}, {"dataDir", c.DataDir}} {
		if p.value != "" && !filepath.IsAbs(p.value) {
			f.Addf(p.path, "%q is not an absolute path", p.value)
		}
	}
	if c.OverlayFile != "" && c.SubnetFile != "" {
		f.Addf("subnetFile", "cannot be combined with overlayFile: remove one of them")
	}
	for _, key := range []string{"name", "ipam"} {
		if _, ok := c.Delegate[key]; ok {
			f.Addf("delegate."+key, "is not accepted: put it beside delegate, at the top level")
		}
	}
	if raw, ok := c.Delegate["type"]; ok {
		var typ string
		if json.Unmarshal(raw, &typ) != nil || typ == "" {
			f.Addf("delegate.type", "%s is not the name of a plugin", raw)
		}
	}
	if raw, ok := c.IPAM["routes"]; ok {
		var routes []json.RawMessage
		if json.Unmarshal(raw, &routes) != nil {
			f.Addf("ipam.routes", "is not a list")
		}
	}
	return f.Err()
}

// delegateType returns the type of the plugin that makes the interface.
func (c *Conf) delegateType() string {
	var typ string
	if json.Unmarshal(c.Delegate["type"], &typ) != nil || typ == "" {
		return "bridge"
	}
	return typ
}
