// Package ovs is the CNI role "ovs": it connects containers to a bridge of Open
// vSwitch. It has the keys of ovs-cni.
package ovs

import (
	"cmp"
	"errors"
	"slices"
	"strconv"

	"github.com/cnibox/cnibox/internal/ovsdb"
	"github.com/cnibox/cnibox/roles"
)

// Conf is the network configuration of the ovs role.
type Conf struct {
	roles.NetConf
	// Bridge is the name of the Open vSwitch bridge, which must exist. Without it,
	// a container with an ovnPort is connected to "br-int"; others need it.
	Bridge string `json:"bridge,omitempty"`
	// VLAN makes the port an access port of this VLAN, from 0 to 4095. Without it,
	// or with trunk, the port is a trunk.
	VLAN *int `json:"vlan,omitempty"`
	// Trunk are the VLANs of a trunk port. Without it the port carries all VLANs.
	Trunk []Trunk `json:"trunk,omitempty"`
	// MTU of both ends of the pair. 0 leaves it to the kernel.
	MTU int `json:"mtu,omitempty"`
	// DeviceID, the virtual function of a card that offloads Open vSwitch, is an
	// error: hardware offload is not supported.
	DeviceID string `json:"deviceID,omitempty"`
	// OFPortRequest is the OpenFlow port number to ask for, from 1 to 65279. 0
	// leaves the choice to Open vSwitch.
	OFPortRequest int `json:"ofport_request,omitempty"`
	// InterfaceType is the type of the interface in Open vSwitch's database. Empty,
	// the default, and "system" are links of the host.
	InterfaceType string `json:"interface_type,omitempty"`
	// SocketFile is where Open vSwitch's database server listens:
	// "unix:/var/run/openvswitch/db.sock" (default), another path with or without
	// "unix:", or "tcp:ADDRESS:PORT". "ssl:" is an error.
	SocketFile string `json:"socket_file,omitempty"`
	// ConfigurationPath is a JSON file with keys of this plugin: those of them that
	// the configuration does not set are taken from it. If it does not exist,
	// /etc/kubernetes/cni/net.d/ovs.d/ovs.conf is read, or else
	// /etc/cni/net.d/ovs.d/ovs.conf.
	ConfigurationPath string `json:"configuration_path,omitempty"`
	// LinkStateCheckRetries and link_state_check_interval are multiplied: so long
	// ADD waits until Open vSwitch forwards the port's packets, at most a minute.
	// Default 5. Without ipam ADD does not wait.
	LinkStateCheckRetries int `json:"link_state_check_retries,omitempty"`
	// LinkStateCheckInterval is in milliseconds. Default 600.
	LinkStateCheckInterval int `json:"link_state_check_interval,omitempty"`
	// RuntimeConfig holds the values that the runtime gives for the declared
	// capabilities.
	RuntimeConfig struct {
		// MAC is the container's MAC address. It takes precedence over args and
		// CNI_ARGS.
		MAC string `json:"mac,omitempty"`
	} `json:"runtimeConfig,omitzero"`
	// Args holds args.cni.
	Args struct {
		CNI struct {
			// MAC is the container's MAC address. It takes precedence over
			// CNI_ARGS.
			MAC string `json:"mac,omitempty"`
			// OVNPort is the logical port of OVN that the interface is of. It takes
			// precedence over OvnPort in CNI_ARGS.
			OVNPort string `json:"ovnPort,omitempty"`
		} `json:"cni,omitzero"`
	} `json:"args,omitzero"`
}

// Trunk is one entry of trunk: an id, a range from minID to maxID, or both. An
// entry of neither has no effect.
type Trunk struct {
	// MinID is the first VLAN of a range, from 1.
	MinID int `json:"minID,omitempty"`
	// MaxID is the last VLAN of a range, to 4095.
	MaxID int `json:"maxID,omitempty"`
	// ID is a single VLAN, from 0 to 4095.
	ID *int `json:"id,omitempty"`
}

const (
	maxVLAN   = 4095
	maxOFPort = 65279
	ovnBridge = "br-int"
	// defaultRetries and defaultInterval are those of ovs-cni.
	defaultRetries, defaultInterval = 5, 600
	// maxWait is the longest wait in milliseconds.
	maxWait = 60_000
)

// ForUndo forgets a socket that is not one. The record has the socket that ADD used.
func (c *Conf) ForUndo() {
	if _, _, err := ovsdb.Endpoint(c.SocketFile); err != nil {
		c.SocketFile = ""
	}
}

// Validate reports every invalid key with its JSON path.
func (c *Conf) Validate() error {
	var f roles.Faults
	if c.Bridge != "" {
		f.Check("bridge", roles.LinkName(c.Bridge))
	}
	if c.VLAN != nil && (*c.VLAN < 0 || *c.VLAN > maxVLAN) {
		f.Addf("vlan", "%d is out of range: use 0 to %d, or remove it for a trunk", *c.VLAN, maxVLAN)
	}
	c.checkTrunk(&f)
	if c.MTU < 0 || c.MTU > 65535 {
		f.Addf("mtu", "%d is out of range: use 0 (the kernel's) to 65535", c.MTU)
	}
	if c.DeviceID != "" {
		f.Addf("deviceID", "hardware offload is not supported: remove the key, or use ovs-cni for this network")
	}
	if c.OFPortRequest < 0 || c.OFPortRequest > maxOFPort {
		f.Addf("ofport_request", "%d is out of range: use 1 to %d, or 0 for none", c.OFPortRequest, maxOFPort)
	}
	c.checkSocket(&f)
	for _, v := range []struct {
		path string
		n    int
	}{{"link_state_check_retries", c.LinkStateCheckRetries}, {"link_state_check_interval", c.LinkStateCheckInterval}} {
		if v.n < 0 {
			f.Addf(v.path, "%d is less than 0: use 0 for the default", v.n)
		}
	}
	c.macKeys().Check(&f)
	return f.Err()
}

func (c *Conf) checkSocket(f *roles.Faults) {
	switch _, _, err := ovsdb.Endpoint(c.SocketFile); {
	case errors.Is(err, ovsdb.ErrTLS):
		f.Addf("socket_file", "TLS is not supported: use unix:PATH, or tcp:ADDRESS:PORT on an address of this node")
	case err != nil:
		f.Addf("socket_file", "%q is not known: use unix:PATH or tcp:ADDRESS:PORT", c.SocketFile)
	}
}

func (c *Conf) checkTrunk(f *roles.Faults) {
	before := len(c.Trunk) > 0
	valid := true
	for i, t := range c.Trunk {
		p := "trunk[" + strconv.Itoa(i) + "]"
		id := 0
		if t.ID != nil {
			id = *t.ID
		}
		for _, v := range []struct {
			name string
			id   int
		}{{"minID", t.MinID}, {"maxID", t.MaxID}, {"id", id}} {
			if v.id < 0 || v.id > maxVLAN {
				f.Addf(p+"."+v.name, "%d is out of range: use 1 to %d", v.id, maxVLAN)
				valid = false
			}
		}
		if t.MaxID != 0 && t.MaxID < t.MinID {
			f.Addf(p+".maxID", "%d is less than minID %d", t.MaxID, t.MinID)
			valid = false
		}
	}
	if before && valid && len(c.trunks()) == 0 {
		f.Addf("trunk", "contains no VLAN: set id, or minID and maxID, or remove it for all VLANs")
	}
}

// trunks returns the VLANs of trunk in order, each once.
func (c *Conf) trunks() (all []int) {
	for _, t := range c.Trunk {
		if t.MinID > 0 && t.MaxID > 0 {
			for id := t.MinID; id <= t.MaxID; id++ {
				all = append(all, id)
			}
		}
		if t.ID != nil {
			all = append(all, *t.ID)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// wait returns how long ADD waits for Open vSwitch, in milliseconds.
func (c *Conf) wait() int {
	if c.IPAM.Type == "" {
		return 0
	}
	retries, interval := cmp.Or(c.LinkStateCheckRetries, defaultRetries), cmp.Or(c.LinkStateCheckInterval, defaultInterval)
	if retries > maxWait/interval { // also if the product overflows
		return maxWait
	}
	return retries * interval
}

// macKeys are the keys that set the container's MAC address, the one with the
// highest precedence first.
func (c *Conf) macKeys() roles.MACKeys {
	return roles.MACKeys{{Path: "runtimeConfig.mac", Value: c.RuntimeConfig.MAC}, {Path: "args.cni.mac", Value: c.Args.CNI.MAC}}
}

// mac is the container's MAC address in colon form, chosen by precedence, or ""
// if none is configured.
func (c *Conf) mac(args roles.Args) (string, error) {
	if m := c.macKeys().Value(); m != "" {
		return m, nil
	}
	return args.MACArg()
}

// ovnPort is the logical port of OVN, or "".
func (c *Conf) ovnPort(args roles.Args) string {
	return cmp.Or(c.Args.CNI.OVNPort, args.Get("OvnPort"))
}

// bridge is the bridge of a container.
func (c *Conf) bridge(args roles.Args) (string, error) {
	switch {
	case c.Bridge != "":
		return c.Bridge, nil
	case c.ovnPort(args) != "":
		return ovnBridge, nil
	}
	return "", &roles.ConfError{Path: "bridge", Reason: "is missing: name a bridge of Open vSwitch, or give OvnPort in CNI_ARGS"}
}
