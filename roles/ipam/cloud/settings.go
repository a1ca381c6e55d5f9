package cloud

import (
	"cmp"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/leasing"
	"github.com/cnibox/cnibox/roles/call/sticky"
	"github.com/cnibox/cnibox/roles/cloud/azureview"
	"github.com/cnibox/cnibox/roles/cloud/metadata"
	"github.com/cnibox/cnibox/roles/ipam/cloud/feed"
	"github.com/cnibox/cnibox/store"
)

// settings are a parsed and valid configuration.
type settings struct {
	feed     feed.Options
	cooldown time.Duration
	// nic is a MAC or the name of a link, or empty for any.
	nic string
	// subnet is invalid for any.
	subnet netip.Prefix
	// bits are the address lengths of the families. There is one set for each.
	bits   []int
	routes []*types.Route
	dns    types.DNS
	// plan has no sets.
	plan leasing.Plan
	// files are azure's state files.
	files azureview.Conf
}

// Defaults and limits of IPAM.
const (
	defaultCooldown = 30 * time.Second
	maxInterval     = 24 * time.Hour
	intervals       = `a time from "1s" to "24h", or a number of seconds`
)

// families returns the values of IPAM.Family.
func families() map[string][]int {
	return map[string][]int{"ipv4": {32}, "ipv6": {128}, "dual": {32, 128}}
}

// environments returns the providers for azure's names.
func environments() map[string]string {
	return map[string]string{"azure": "azure", "mas": "file", "fileIpam": "file"}
}

// newSettings parses a configuration. Its error joins all faults.
func newSettings(c *Conf) (*settings, error) {
	var f roles.Faults
	if c.IPAM == nil {
		f.Addf("ipam", "is required")
		return nil, f.Err()
	}
	p := c.IPAM
	s := &settings{nic: p.NIC, dns: p.DNS, routes: roles.ParseRoutes(&f, "ipam.routes", p.Routes), files: c.Conf}
	s.files.Check(&f)
	s.parseSource(&f, p)
	s.parseTimes(&f, p)
	s.parseChoice(&f, p)
	s.plan = leasing.Plan{DataDir: store.CloudDataDir, MAC: cmp.Or(c.RuntimeConfig.MAC, c.Args.CNI.MAC)}
	leasing.RequestSources{
		Network: c.Name, RuntimeIPs: c.RuntimeConfig.IPs, ArgsIPs: c.Args.CNI.IPs, Configured: p.IPAddress,
		Annotations: c.RuntimeConfig.Annotations, Requests: p.Requests,
	}.Parse(&f, &s.plan)
	s.plan.Sticky = sticky.Parse(&f, "ipam.sticky", p.Sticky)
	if err := f.Err(); err != nil {
		return nil, err
	}
	return s, nil
}

// parseSource parses the provider, URL and file.
func (s *settings) parseSource(f *roles.Faults, p *IPAM) {
	s.feed.Provider = p.Provider
	if p.Environment != "" {
		of, ok := environments()[p.Environment]
		switch {
		case p.Environment == "ipv6NodeIpam":
			f.Addf("ipam.environment", "%q is not supported: use host-local for addresses of the node's podCIDRs", p.Environment)
		case !ok:
			f.Addf("ipam.environment", "%q is not one of %q, %q, %q", p.Environment, "azure", "mas", "fileIpam")
		case p.Provider != "" && p.Provider != of:
			f.Addf("ipam.environment", "%q contradicts ipam.provider %q: remove one", p.Environment, p.Provider)
		}
		s.feed.Provider = of
	}
	name := cmp.Or(s.feed.Provider, "auto")
	if _, ok := metadata.Lookup(cmp.Or(p.Provider, name)); !ok && p.Provider != "" {
		var names []string
		for _, m := range metadata.Providers() {
			names = append(names, m.Name)
		}
		f.Addf("ipam.provider", "%q is not one of %q", p.Provider, names)
	}
	if p.URL != "" {
		s.feed.URL = p.URL
		if name == "file" {
			f.Addf("ipam.url", "has no effect with the provider %q: remove it, or name the file in ipam.file", name)
		} else {
			f.Check("ipam.url", metadata.CheckURL(p.URL))
		}
	}
	if p.File != "" {
		s.feed.File = p.File
		if name != "file" {
			f.Addf("ipam.file", "has no effect with the provider %q: remove it, or set ipam.provider to %q", name, "file")
		} else if !filepath.IsAbs(p.File) {
			f.Addf("ipam.file", "%q is not an absolute path", p.File)
		}
	}
}

func (s *settings) parseTimes(f *roles.Faults, p *IPAM) {
	var err error
	s.feed.Interval, err = p.QueryInterval.Or(feed.DefaultInterval)
	switch {
	case err != nil:
		f.Addf("ipam.queryInterval", "%v: use %s", err, intervals)
	case s.feed.Interval < time.Second || s.feed.Interval > maxInterval:
		f.Addf("ipam.queryInterval", "%s is out of range: use %s", s.feed.Interval, intervals)
	}
	s.cooldown, err = p.Cooldown.Or(defaultCooldown)
	f.Check("ipam.cooldown", err)
}

// parseChoice parses the restrictions of the addresses.
func (s *settings) parseChoice(f *roles.Faults, p *IPAM) {
	var ok bool
	s.bits, ok = families()[p.Family]
	if !ok {
		f.Addf("ipam.family", "%q is not one of %q, %q, %q", p.Family, "ipv4", "ipv6", "dual")
	}
	if m, err := net.ParseMAC(p.NIC); err == nil {
		s.nic = m.String()
	}
	if p.AddressSpace != "" && p.AddressSpace != "local" {
		f.Addf("ipam.addressSpace", "%q is not supported: use %q", p.AddressSpace, "local")
	}
	if p.Subnet == "" {
		return
	}
	subnet, err := netip.ParsePrefix(p.Subnet)
	switch {
	case err != nil || subnet.Addr().Is4In6():
		f.Addf("ipam.subnet", "%q is not a CIDR, such as 10.240.0.0/16", p.Subnet)
	case subnet != subnet.Masked():
		f.Addf("ipam.subnet", "%s has host bits set: the network is %s", subnet, subnet.Masked())
	case ok && !slices.Contains(s.bits, subnet.Addr().BitLen()):
		f.Addf("ipam.subnet", "%s is of another address family than ipam.family %q", subnet, p.Family)
	}
	s.subnet = subnet
}
