package doctor

import (
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/cnibox/cnibox/roles/see/check"
)

// credentialTime is the time before the end of credentials in which they are reported.
const credentialTime = 7 * 24 * time.Hour

// confChecks look at the networks' files.
func confChecks() []Check {
	const files = "the files in the runtimes' directories"
	return []Check{
		{ID: "network-none", Title: "a runtime has no network for pods", Reads: files, Severity: Error, find: func(f *Facts, add add) {
			for _, r := range f.Runtimes {
				faulty := slices.ContainsFunc(f.Networks, func(n *Network) bool { return n.IsUnusable && filepath.Dir(n.Path) == r.Dir })
				if r.Network == nil && r.Delegate == "" && !r.BuiltIn && !faulty && (f.hasKubelet() || !f.isGone(r.Dir)) {
					add(r.Name, r.Why, "cnibox install --conflist NETWORK.conflist --conf-dir "+r.Dir)
				}
			}
		}},
		{ID: "network-faulty", Title: "a network's file is faulty", Reads: files + ", as 'cnibox lint'", Severity: Error, find: func(f *Facts, add add) {
			for _, n := range f.Networks {
				if n.Fault != "" {
					add(n.Path, n.Fault, n.Fix)
				}
			}
		}},
		{ID: "network-hidden", Title: "a runtime uses another program's network instead of cnibox's", Reads: files + "; the runtimes' configuration", Severity: Warning, find: func(f *Facts, add add) {
			for _, r := range f.Runtimes {
				if r.Network == nil || r.Network.OwnTypes || r.Delegate != "" || r.Default != "" {
					continue
				}
				for _, n := range f.Networks {
					if n.OwnTypes && !n.IsUnusable && filepath.Dir(n.Path) == r.Dir {
						add(r.Name, fmt.Sprintf("it uses %s, which is %s, not %s", r.Network.Path, r.Why, n.Path), "mv "+r.Network.Path+" "+r.Network.Path+".unused")
					}
				}
			}
		}},
		{ID: "podman-netavark", Title: "podman, the only runtime, uses netavark, which runs no CNI plugin", Reads: "podman's configuration", Severity: Warning, find: func(f *Facts, add add) {
			if f.Netavark && f.Runtimes[0].BuiltIn && slices.ContainsFunc(f.Networks, func(n *Network) bool { return n.OwnTypes }) {
				add("podman", "network_backend is netavark", "cnibox install --runtime podman")
			}
		}},
	}
}

// rangeChecks compare the ranges of networks with each other and with the node's.
func rangeChecks() []Check {
	const files = "the networks' files"
	return []Check{
		{ID: "bridge-shared", Title: "two networks use one bridge with different subnets", Reads: files, Severity: Error, find: func(f *Facts, add add) {
			for i, n := range f.Networks {
				for _, m := range f.Networks[i+1:] {
					if n.Bridge != "" && n.Bridge == m.Bridge && n.Name != m.Name && len(n.Ranges) > 0 && len(m.Ranges) > 0 && n.Ranges[0].Subnet != m.Ranges[0].Subnet {
						add(n.Bridge, fmt.Sprintf("%s has %s, %s has %s", n.Path, n.Ranges[0].Subnet, m.Path, m.Ranges[0].Subnet), "edit "+m.Path)
					}
				}
			}
		}},
		{ID: "ranges-overlap", Title: "two networks give the same addresses", Reads: files, Severity: Error, find: func(f *Facts, add add) {
			for i, n := range f.Networks {
				for _, m := range f.Networks[i+1:] {
					if n.Name != m.Name {
						eachOverlap(n, m, func(a, b Range) {
							add(n.Name+" and "+m.Name, fmt.Sprintf("%s in %s, %s in %s", a.Subnet, n.Path, b.Subnet, m.Path), "edit "+m.Path)
						})
					}
				}
			}
		}},
		{ID: "range-on-node", Title: "a network's range overlaps a network of the node", Reads: files + "; the node's addresses and routes", Severity: Error, find: rangeOnNode},
		{ID: "range-of-services", Title: "a network's range overlaps that of Kubernetes' services", Reads: files + "; /etc/kubernetes/manifests", Severity: Error, find: func(f *Facts, add add) {
			for _, n := range f.Networks {
				for _, r := range n.Ranges {
					for _, s := range f.Services {
						if r.Subnet.Overlaps(s) {
							add(n.Name, fmt.Sprintf("%s and the services' %s", r.Subnet, s), "edit "+n.Path)
						}
					}
				}
			}
		}},
	}
}

// kubeconfigChecks look at the kubeconfigs that networks name.
func kubeconfigChecks() []Check {
	const files = "the kubeconfigs of networks and of the agent's service"
	return []Check{
		{ID: "kubeconfig-unusable", Title: "a kubeconfig cannot be used", Reads: files, Severity: Error, find: func(f *Facts, add add) {
			for _, k := range f.Kubeconfigs {
				if k.Err != nil {
					add(k.Path, k.Err.Error(), "kubectl --kubeconfig "+k.Path+" config view")
				}
			}
		}},
		{ID: "kubeconfig-expired", Title: "a kubeconfig's credentials have ended", Reads: files, Severity: Error, find: func(f *Facts, add add) {
			eachEnd(f, func(k *Kubeconfig, what string, end time.Time) {
				if !end.After(f.Now) {
					add(k.Path, what+" ended at "+end.UTC().Format(time.RFC3339), "kubeadm certs renew all")
				}
			})
		}},
		{ID: "kubeconfig-ending", Title: "a kubeconfig's credentials end within a week", Reads: files, Severity: Warning, find: func(f *Facts, add add) {
			eachEnd(f, func(k *Kubeconfig, what string, end time.Time) {
				if end.After(f.Now) && end.Before(f.Now.Add(credentialTime)) && what == certificate {
					add(k.Path, what+" ends at "+end.UTC().Format(time.RFC3339), "kubeadm certs renew all")
				}
			})
		}},
	}
}

// hasKubelet reports whether a kubelet runs pods on the node.
func (f *Facts) hasKubelet() bool {
	return slices.ContainsFunc(f.Runtimes, func(r Runtime) bool { return r.Delegate != "" })
}

// certificate names the credential that no other program renews within hours, as tokens are.
const certificate = "the client certificate"

func eachEnd(f *Facts, each func(k *Kubeconfig, what string, end time.Time)) {
	for i := range f.Kubeconfigs {
		k := &f.Kubeconfigs[i]
		if !k.Cert.IsZero() {
			each(k, certificate, k.Cert)
		}
		if !k.Token.IsZero() {
			each(k, "the token", k.Token)
		}
	}
}

func eachOverlap(n, m *Network, each func(a, b Range)) {
	for _, a := range n.Ranges {
		for _, b := range m.Ranges {
			if a.Lo.BitLen() == b.Lo.BitLen() && a.Lo.Compare(b.Hi) <= 0 && b.Lo.Compare(a.Hi) <= 0 {
				each(a, b)
			}
		}
	}
}

// rangeOnNode compares the ranges with addresses and routes of links that are not of pods. A
// bridge of the network and the tunnel have such addresses themselves. macvlan, ipvlan, sriov and ovs have ranges of
// the node's network.
func rangeOnNode(f *Facts, add add) {
	for _, n := range f.Networks {
		if slices.ContainsFunc(n.Types, func(t string) bool {
			return slices.Contains([]string{"macvlan", "ipvlan", "vlan", "bond", "host-device", "sriov", "ovs", "routed"}, t)
		}) {
			continue
		}
		for _, own := range n.Ranges {
			p := own.Subnet
			for _, l := range f.links() {
				if l.Name == n.Bridge || f.isOwn(&l) {
					continue
				}
				for _, a := range l.Addresses {
					if a.Addr().IsGlobalUnicast() && !a.IsSingleIP() && p.Overlaps(a.Masked()) {
						fix := "edit " + n.Path
						if a.Masked() == p && f.link(n.Bridge) != nil { // it was the bridge's
							fix = fmt.Sprintf("ip addr del %s dev %s", a, l.Name)
						}
						add(n.Name, fmt.Sprintf("%s and the address %s of %s", p, a, l.Name), fix)
					}
				}
			}
			for _, r := range f.routes() {
				l := f.link(r.Link)
				if l == nil || check.IsTunnel(l) || l.Name == n.Bridge || f.isOwn(l) || !r.Via.IsValid() || r.Dst.Bits() == 0 {
					continue
				}
				if p.Overlaps(r.Dst) && r.Dst.Bits() >= p.Bits() && !n.Overlay {
					add(n.Name, fmt.Sprintf("%s and the route to %s via %s", p, r.Dst, r.Via), "edit "+n.Path)
				}
			}
		}
	}
}
