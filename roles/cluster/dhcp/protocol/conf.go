// Package protocol has what the DHCP daemon and its plugins share: the network configuration and the
// calls over a unix socket. It does not import the DHCP library.
package protocol

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cnibox/cnibox/roles"
)

// DefaultSocket is the default path of the daemon's socket.
const DefaultSocket = "/run/cni/dhcp.sock"

// Address families in configurations and records.
const (
	IPv4 = "ipv4"
	IPv6 = "ipv6"
)

// Values of clientID, which selects the content of client identifiers.
const (
	ByPod       = "pod"
	ByContainer = "container"
)

// Conf is dhcp's network configuration. The role gets the complete configuration of the plugin that
// delegates to it. Its own keys are in "ipam".
type Conf struct {
	roles.NetConf
	// IPAM is required.
	IPAM *IPAM `json:"ipam"`
}

// IPAM is the "ipam" object.
type IPAM struct {
	// Type is "dhcp".
	Type string `json:"type,omitempty"`
	// DaemonSocketPath is the path of the daemon's socket. Default: /run/cni/dhcp.sock.
	DaemonSocketPath string `json:"daemonSocketPath,omitempty"`
	// Families are "ipv4" (DHCP, RFC 2131) and "ipv6" (DHCPv6, one non-temporary address, RFC 8415).
	// ADD needs an address of each. Default: ["ipv4"].
	Families []string `json:"families,omitempty"`
	// ClientID is the content of the client identifier. "pod" is the pod's name if the runtime passes
	// it, so that a restarted pod gets its address again. "container" is the container ID, as with
	// the reference. Default: "pod".
	ClientID string `json:"clientID,omitempty"`
	// Request lists options to request from servers, in addition to the default ones: subnet-mask,
	// routers, static and classless routes, name servers, domain and search list.
	Request []RequestOption `json:"request,omitempty"`
	// Provide lists options that are sent to servers.
	Provide []ProvideOption `json:"provide,omitempty"`
	// Priority is the metric of all routes of the result.
	Priority int `json:"priority,omitempty"`
}

// RequestOption is an option to request.
type RequestOption struct {
	// Option is a number or one of: dhcp-client-identifier, host-name,
	// interface-mtu, routers, subnet-mask, user-class, vendor-class-identifier.
	// interface-mtu becomes the MTU of the result's routes.
	Option string `json:"option,omitempty"`
	// SkipDefault omits the default options.
	SkipDefault bool `json:"skipDefault,omitempty"`
}

// ProvideOption is an option to send.
type ProvideOption struct {
	// Option is a number or a name, as in request.
	Option string `json:"option,omitempty"`
	// Value is sent as it is, at most 255 bytes.
	Value string `json:"value,omitempty"`
	// FromArg is a key of CNI_ARGS whose value is sent. It takes precedence over value.
	FromArg string `json:"fromArg,omitempty"`
}

// Decode decodes and validates a configuration and sets defaults.
func Decode(conf []byte) (*Conf, error) {
	c := new(Conf)
	if err := roles.Decode(conf, c); err != nil {
		return nil, err
	}
	if c.IPAM == nil {
		c.IPAM = new(IPAM)
	}
	if c.IPAM.DaemonSocketPath == "" {
		c.IPAM.DaemonSocketPath = DefaultSocket
	}
	if len(c.IPAM.Families) == 0 {
		c.IPAM.Families = []string{IPv4}
	}
	if c.IPAM.ClientID == "" {
		c.IPAM.ClientID = ByPod
	}
	return c, c.validate()
}

// maxSocketPath is the longest path of a unix socket, in bytes.
const maxSocketPath = 107

func (c *Conf) validate() error {
	var f roles.Faults
	i := c.IPAM
	if !strings.HasPrefix(i.DaemonSocketPath, "/") || len(i.DaemonSocketPath) > maxSocketPath {
		f.Addf("ipam.daemonSocketPath", "%.120q is not an absolute path of at most %d bytes", i.DaemonSocketPath, maxSocketPath)
	}
	for n, family := range i.Families {
		if family != IPv4 && family != IPv6 {
			f.Addf(fmt.Sprintf("ipam.families[%d]", n), "is %.40q: use \"ipv4\" or \"ipv6\"", family)
		} else if slices.Contains(i.Families[:n], family) {
			f.Addf(fmt.Sprintf("ipam.families[%d]", n), "%q is given twice", family)
		}
	}
	if i.ClientID != ByPod && i.ClientID != ByContainer {
		f.Addf("ipam.clientID", "is %.40q: use \"pod\" or \"container\"", i.ClientID)
	}
	for n, r := range i.Request {
		if r.Option != "" {
			checkOption(&f, fmt.Sprintf("ipam.request[%d].option", n), r.Option)
		}
	}
	for n, p := range i.Provide {
		checkOption(&f, fmt.Sprintf("ipam.provide[%d].option", n), p.Option)
		if len(p.Value) > MaxOption {
			f.Addf(fmt.Sprintf("ipam.provide[%d].value", n), "has %d bytes, an option holds at most %d", len(p.Value), MaxOption)
		}
	}
	if i.Priority < 0 || int64(i.Priority) > 1<<32-1 {
		f.Addf("ipam.priority", "%d is not a metric: use 0 to 4294967295", i.Priority)
	}
	return f.Err()
}

// MaxOption is the largest value of a DHCPv4 option, in bytes.
const MaxOption = 255

// Options by their codes (RFC 2132; RFC 3397 and RFC 3442 for 119 and 121, RFC 3004 for 77).
const (
	optionSubnetMask       = 1
	optionRouters          = 3
	optionNameServers      = 6
	optionHostName         = 12
	optionDomain           = 15
	OptionInterfaceMTU     = 26
	optionStaticRoutes     = 33
	optionVendorClass      = 60
	OptionClientIdentifier = 61
	optionUserClass        = 77
	optionSearchList       = 119
	optionClasslessRoutes  = 121
)

// optionCodes returns the names of some options in dhcp-options(5).
func optionCodes() map[string]uint8 {
	return map[string]uint8{
		"dhcp-client-identifier":  OptionClientIdentifier,
		"host-name":               optionHostName,
		"interface-mtu":           OptionInterfaceMTU,
		"routers":                 optionRouters,
		"subnet-mask":             optionSubnetMask,
		"user-class":              optionUserClass,
		"vendor-class-identifier": optionVendorClass,
	}
}

// optionCode returns the code of an option's name or number.
func optionCode(s string) (code uint8, ok bool) {
	if code, ok := optionCodes()[s]; ok {
		return code, true
	}
	n, err := strconv.ParseUint(s, 10, 8)
	if err != nil || n == 0 || n == 255 {
		return 0, false // 0 and 255 are padding and end
	}
	return uint8(n), true
}

func checkOption(f *roles.Faults, path, option string) {
	if _, ok := optionCode(option); ok {
		return
	}
	f.Addf(path, "%.40q is not an option: use a number from 1 to 254 or one of dhcp-client-identifier, host-name, interface-mtu, routers, subnet-mask, user-class, vendor-class-identifier", option)
}

// Option is an option to send.
type Option struct {
	Code  uint8
	Value []byte
}

// Provided returns the options to send for a call.
func (c *Conf) Provided(args roles.Args) ([]Option, error) {
	var out []Option
	for n, p := range c.IPAM.Provide {
		code, ok := optionCode(p.Option)
		value := p.Value
		if p.FromArg != "" && args.Get(p.FromArg) != "" {
			value = args.Get(p.FromArg)
		}
		if len(value) > MaxOption {
			return nil, &roles.EnvError{Name: "CNI_ARGS: " + p.FromArg, Reason: fmt.Sprintf("has %d bytes, an option holds at most %d (ipam.provide[%d])", len(value), MaxOption, n)}
		}
		if ok && value != "" {
			out = append(out, Option{code, []byte(value)})
		}
	}
	return out, nil
}

// Requested returns the parameter request list. Classless routes precede the options
// that they replace (RFC 3442).
func (c *Conf) Requested() []uint8 {
	codes := []uint8{
		optionClasslessRoutes, optionStaticRoutes, optionSubnetMask, optionRouters,
		optionNameServers, optionDomain, optionSearchList,
	}
	if slices.ContainsFunc(c.IPAM.Request, func(r RequestOption) bool { return r.SkipDefault }) {
		codes = nil
	}
	for _, r := range c.IPAM.Request {
		if code, ok := optionCode(r.Option); ok && !slices.Contains(codes, code) {
			codes = append(codes, code)
		}
	}
	return codes
}
