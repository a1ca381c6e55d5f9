package hostlocal

import (
	"cmp"
	"path/filepath"
	"strings"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/leasefiles"
	"github.com/cnibox/cnibox/roles/call/leasing"
	"github.com/cnibox/cnibox/roles/call/sticky"
)

// plan parses a configuration. Its error joins all faults.
func plan(c *Conf) (*handler, error) {
	var f roles.Faults
	if c.IPAM == nil {
		f.Addf("ipam", "is required")
		return nil, f.Err()
	}
	p := &leasing.Plan{DataDir: filepath.Clean(c.IPAM.DataDir)}
	a := &handler{Allocator: &leasing.Allocator{Plan: p, Life: leasing.NodeLiveness()}, resolvConf: c.IPAM.ResolvConf}
	for _, v := range []struct{ path, value string }{{"ipam.dataDir", p.DataDir}, {"ipam.resolvConf", a.resolvConf}} {
		if strings.ContainsRune(v.value, 0) {
			f.Addf(v.path, "holds a NUL byte")
		}
	}
	if c.IPAM.Mirror == nil || *c.IPAM.Mirror {
		a.Files = leasefiles.Files{SetOf: p.SetOf}
	}
	b := setBuilder{faults: &f, exclude: leasing.ParseExclude(&f, "ipam.exclude", c.IPAM.Exclude)}
	b.addAll("runtimeConfig.ipRanges", c.RuntimeConfig.IPRanges)
	b.addOld(c.IPAM)
	b.addAll("ipam.ranges", c.IPAM.Ranges)
	if b.count == 0 && !c.Capabilities["ipRanges"] {
		f.Addf("ipam.ranges", "is required: a list of range sets, such as [[{\"subnet\": \"10.1.0.0/16\"}]]")
	}
	p.Sets = b.finish(c.CNIVersion)
	a.routes = roles.ParseRoutes(&f, "ipam.routes", c.IPAM.Routes)
	leasing.RequestSources{
		Network: c.Name, RuntimeIPs: c.RuntimeConfig.IPs, ArgsIPs: c.Args.CNI.IPs,
		Annotations: c.RuntimeConfig.Annotations, Requests: c.IPAM.Requests,
	}.Parse(&f, p)
	p.Sticky = sticky.Parse(&f, "ipam.sticky", c.IPAM.Sticky)
	p.MAC = cmp.Or(c.RuntimeConfig.MAC, c.Args.CNI.MAC)
	if err := f.Err(); err != nil {
		return nil, err
	}
	return a, nil
}
