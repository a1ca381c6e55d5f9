// Package dhcp is the daemon behind the IPAM role dhcp: it gets addresses from
// DHCP servers for containers, keeps them and gives them back. The plugin asks
// it over a unix socket, in the protocol of the reference's.
package dhcp

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/cnibox/cnibox/roles"
)

// DefaultSocket is where the daemon listens.
const DefaultSocket = "/run/cni/dhcp.sock"

// Address families as configurations and records name them.
const (
	ipv4 = "ipv4"
	ipv6 = "ipv6"
)

// What client identifiers are made of.
const (
	byPod       = "pod"
	byContainer = "container"
)

// Conf is dhcp's network configuration. It gets the whole configuration of the
// plugin that delegates to it; its own keys are under "ipam".
type Conf struct {
	roles.NetConf
	// IPAM is required.
	IPAM *IPAM `json:"ipam"`
}

// IPAM is the "ipam" object.
type IPAM struct {
	// Type is "dhcp".
	Type string `json:"type,omitempty"`
	// DaemonSocketPath is the daemon's socket. Default /run/cni/dhcp.sock.
	DaemonSocketPath string `json:"daemonSocketPath,omitempty"`
	// Families are "ipv4" (DHCP, RFC 2131) and "ipv6" (DHCPv6, one
	// non-temporary address, RFC 8415). ADD needs an address of each. Default
	// ["ipv4"].
	Families []string `json:"families,omitempty"`
	// ClientID says what the client identifier is made of: "pod", of the pod's
	// name where the runtime tells it, so that a container that comes back gets
	// its address back, or "container", of the container ID, as the reference
	// does. Default "pod".
	ClientID string `json:"clientID,omitempty"`
	// Request lists options that servers are asked for, beside the default ones:
	// subnet-mask, routers, static and classless routes, name servers, domain
	// and search list.
	Request []RequestOption `json:"request,omitempty"`
	// Provide lists options that are sent to servers.
	Provide []ProvideOption `json:"provide,omitempty"`
	// Priority is the metric of all routes of the result.
	Priority int `json:"priority,omitempty"`
}

// RequestOption is an option to ask for.
type RequestOption struct {
	// Option is a number or one of: dhcp-client-identifier, host-name,
	// interface-mtu, routers, subnet-mask, user-class, vendor-class-identifier.
	// interface-mtu becomes the MTU of the result's routes.
	Option string `json:"option,omitempty"`
	// SkipDefault leaves the default options out.
	SkipDefault bool `json:"skipDefault,omitempty"`
}

// ProvideOption is an option to send.
type ProvideOption struct {
	// Option is a number or a name, as in request.
	Option string `json:"option,omitempty"`
	// Value is sent as it is, at most 255 bytes.
	Value string `json:"value,omitempty"`
	// FromArg is a key of CNI_ARGS whose value is sent; it wins over value.
	FromArg string `json:"fromArg,omitempty"`
}

// Decode reads, defaults and validates a configuration.
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
		c.IPAM.Families = []string{ipv4}
	}
	if c.IPAM.ClientID == "" {
		c.IPAM.ClientID = byPod
	}
	return c, c.validate()
}

// maxSocketPath is what a unix socket's address holds.
const maxSocketPath = 107

func (c *Conf) validate() error {
	var f roles.Faults
	i := c.IPAM
	if !strings.HasPrefix(i.DaemonSocketPath, "/") || len(i.DaemonSocketPath) > maxSocketPath {
		f.Addf("ipam.daemonSocketPath", "%.120q is no absolute path of at most %d bytes", i.DaemonSocketPath, maxSocketPath)
	}
	for n, family := range i.Families {
		if family != ipv4 && family != ipv6 {
			f.Addf(fmt.Sprintf("ipam.families[%d]", n), "is %.40q: use \"ipv4\" or \"ipv6\"", family)
		} else if slices.Contains(i.Families[:n], family) {
			f.Addf(fmt.Sprintf("ipam.families[%d]", n), "%q is there twice", family)
		}
	}
	if i.ClientID != byPod && i.ClientID != byContainer {
		f.Addf("ipam.clientID", "is %.40q: use \"pod\" or \"container\"", i.ClientID)
	}
	for n, r := range i.Request {
		if r.Option != "" {
			checkOption(&f, fmt.Sprintf("ipam.request[%d].option", n), r.Option)
		}
	}
	for n, p := range i.Provide {
		checkOption(&f, fmt.Sprintf("ipam.provide[%d].option", n), p.Option)
		if len(p.Value) > maxOption {
			f.Addf(fmt.Sprintf("ipam.provide[%d].value", n), "has %d bytes, an option holds at most %d", len(p.Value), maxOption)
		}
	}
	if i.Priority < 0 || int64(i.Priority) > 1<<32-1 {
		f.Addf("ipam.priority", "%d is no metric: use 0 to 4294967295", i.Priority)
	}
	return f.Err()
}

// maxOption is what one DHCPv4 option holds.
const maxOption = 255

// optionCodes are the names that dhcp-options(5) has for some options.
func optionCodes() map[string]dhcpv4.OptionCode {
	return map[string]dhcpv4.OptionCode{
		"dhcp-client-identifier":  dhcpv4.OptionClientIdentifier,
		"host-name":               dhcpv4.OptionHostName,
		"interface-mtu":           dhcpv4.OptionInterfaceMTU,
		"routers":                 dhcpv4.OptionRouter,
		"subnet-mask":             dhcpv4.OptionSubnetMask,
		"user-class":              dhcpv4.OptionUserClassInformation,
		"vendor-class-identifier": dhcpv4.OptionClassIdentifier,
	}
}

// optionCode is an option by name or number; ok is false for neither.
func optionCode(s string) (code dhcpv4.OptionCode, ok bool) {
	if code, ok := optionCodes()[s]; ok {
		return code, true
	}
	n, err := strconv.ParseUint(s, 10, 8)
	if err != nil || n == 0 || n == 255 {
		return nil, false // pad and end are no options
	}
	return dhcpv4.GenericOptionCode(n), true
}

func checkOption(f *roles.Faults, path, option string) {
	if _, ok := optionCode(option); ok {
		return
	}
	f.Addf(path, "%.40q is no option: use a number from 1 to 254 or one of dhcp-client-identifier, host-name, interface-mtu, routers, subnet-mask, user-class, vendor-class-identifier", option)
}

// provided are the options to send for a call.
func (c *Conf) provided(args roles.Args) ([]dhcpv4.Option, error) {
	var out []dhcpv4.Option
	for n, p := range c.IPAM.Provide {
		code, ok := optionCode(p.Option)
		value := p.Value
		if p.FromArg != "" && args.Get(p.FromArg) != "" {
			value = args.Get(p.FromArg)
		}
		if len(value) > maxOption {
			return nil, &roles.EnvError{Name: "CNI_ARGS: " + p.FromArg, Reason: fmt.Sprintf("has %d bytes, an option holds at most %d (ipam.provide[%d])", len(value), maxOption, n)}
		}
		if ok && value != "" {
			out = append(out, dhcpv4.OptGeneric(code, []byte(value)))
		}
	}
	return out, nil
}

// requested is the parameter request list. Classless routes come before those
// that they replace (RFC 3442).
func (c *Conf) requested() []dhcpv4.OptionCode {
	codes := []dhcpv4.OptionCode{
		dhcpv4.OptionClasslessStaticRoute, dhcpv4.OptionStaticRoutingTable, dhcpv4.OptionSubnetMask, dhcpv4.OptionRouter,
		dhcpv4.OptionDomainNameServer, dhcpv4.OptionDomainName, dhcpv4.OptionDNSDomainSearchList,
	}
	if slices.ContainsFunc(c.IPAM.Request, func(r RequestOption) bool { return r.SkipDefault }) {
		codes = nil
	}
	for _, r := range c.IPAM.Request {
		code, ok := optionCode(r.Option)
		same := func(o dhcpv4.OptionCode) bool { return o.Code() == code.Code() }
		if ok && !slices.ContainsFunc(codes, same) {
			codes = append(codes, code)
		}
	}
	return codes
}

// requests tells whether an option was asked for.
func (c *Conf) requests(code dhcpv4.OptionCode) bool {
	return slices.ContainsFunc(c.requested(), func(o dhcpv4.OptionCode) bool { return o.Code() == code.Code() })
}
