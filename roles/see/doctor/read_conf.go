package doctor

import (
	"cmp"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/leasing"
	"github.com/cnibox/cnibox/roles/call/netlist"
	"github.com/cnibox/cnibox/roles/see/lint"
	"github.com/cnibox/cnibox/roles/see/view"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
	"github.com/cnibox/cnibox/store/cluster/web"
)

// Choose sets the networks that runtimes use, and returns all in their directories.
func Choose(table roles.Table, runtimes []Runtime) []*Network {
	return chooseAmong(runtimes, func(dir string) []*Network {
		all, _ := readDir(dir, table) // doctor reports it
		return all
	})
}

// chooseAmong sets the networks that runtimes use, and returns all that read finds in their directories.
func chooseAmong(runtimes []Runtime, read func(dir string) []*Network) (all []*Network) {
	byDir := map[string][]*Network{}
	for i := range runtimes {
		rt := &runtimes[i]
		if rt.Delegate != "" {
			continue
		}
		if _, known := byDir[rt.Dir]; !known {
			byDir[rt.Dir] = read(rt.Dir)
			all = append(all, byDir[rt.Dir]...)
		}
		rt.choose(byDir[rt.Dir])
	}
	return all
}

// readNetworks reads the networks of a directory. The copies may be changed.
func (r *reader) readNetworks(dir string) (all []*Network) {
	read, err := view.Ask(r.f.Host, "networks: "+dir, func() ([]*Network, error) { return readDir(dir, r.o.Table) })
	r.unread("networks in "+dir, err)
	for _, n := range read {
		one := *n
		one.Ranges = slices.Clip(one.Ranges)
		all = append(all, &one)
	}
	return all
}

// readConf reads the networks and what they name.
func (r *reader) readConf() {
	r.f.Networks = chooseAmong(r.f.Runtimes, r.readNetworks)
	for i := range r.f.Runtimes {
		rt := &r.f.Runtimes[i]
		if rt.Delegate == "" {
			r.readPlugins(rt)
			continue
		}
		for _, other := range r.f.Runtimes {
			if other.Name == rt.Delegate {
				rt.Network, rt.Why = other.Network, "it leaves networks to "+rt.Delegate
			}
		}
	}
	paths, err := view.Ask(r.f.Host, "agent's kubeconfigs", agentKubeconfigs)
	r.unread("the settings of the agent's service", err)
	for _, n := range slices.Backward(r.f.Networks) {
		paths = append(slices.Clone(n.Kube), paths...)
	}
	for _, path := range paths {
		k, err := view.Ask(r.f.Host, "kubeconfig: "+path, func() (Kubeconfig, error) { return readKubeconfig(path) })
		k.Err = err
		r.f.Kubeconfigs = append(r.f.Kubeconfigs, k)
	}
	r.f.Services, err = view.Ask(r.f.Host, "services", services)
	r.unread("range of services", err)
}

// agentKubeconfigs returns the kubeconfig that the agent's service has in its environment.
func agentKubeconfigs() (all []string, _ error) {
	raw, err := smallfile.Read("/etc/default/cnibox-agent", lint.MaxSize)
	if err != nil {
		return nil, nil //nolint:nilerr // the service is not installed, or has no settings
	}
	for _, m := range regexp.MustCompile(`(?m)^FLANNELD_KUBECONFIG_FILE=(\S+)$`).FindAllSubmatch(raw, -1) {
		all = append(all, string(m[1]))
	}
	return all, nil
}

// readDir reads the networks of a directory, in the order of the names.
func readDir(dir string, table roles.Table) (all []*Network, unread error) {
	entries, err := os.ReadDir(dir)
	if !errors.Is(err, fs.ErrNotExist) {
		unread = err
	}
	l := &lint.Linter{Table: table, Find: func(typ string) (string, bool, bool) {
		_, ours := table.Lookup(typ)
		return typ, ours, true // checks of their own look at the files
	}}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if !slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(path)) || e.IsDir() {
			continue
		}
		n := &Network{Path: path, Fix: "cnibox lint " + path}
		raw, err := smallfile.Read(path, lint.MaxSize)
		if err == nil {
			err = n.parse(raw, table)
			if list, parseErr := netlist.Parse(raw, "0.1.0"); parseErr == nil && list.IsFused() && netlist.ManagerOf(raw) != "" {
				n.Fix = "cnibox fuse --split --write " + path
			}
			for _, found := range l.Lint(path, raw) {
				if found.Severity == lint.Fault {
					n.Fault = cmp.Or(n.Fault, strings.TrimPrefix(found.String(), path+":"))
				} else if strings.HasSuffix(found.Path, lint.PolicyLabels) {
					n.PolicyLabels = found.Message
				}
			}
		}
		if err != nil {
			n.IsUnusable = true
			n.Fault = cmp.Or(n.Fault, err.Error())
		}
		all = append(all, n)
	}
	return all, unread
}

// pluginConf has the keys of a plugin that checks need.
type pluginConf struct {
	Bridge     string `json:"bridge"`
	Kubeconfig string `json:"kubeconfig"`
	IPMasq     bool   `json:"ipMasq"`
	MACSpoof   bool   `json:"macspoofchk"`
	LinkType   string `json:"linkType"`

	EgressAddress roles.StringList `json:"egressAddress"`
	IPAM          struct {
		Type string `json:"type"`
		rangeConf
		Ranges [][]rangeConf `json:"ranges"`
	} `json:"ipam"`
	Delegate struct {
		Bridge        string           `json:"bridge"`
		EgressAddress roles.StringList `json:"egressAddress"`
	} `json:"delegate"`
}

type rangeConf struct {
	Subnet  string   `json:"subnet"`
	Start   string   `json:"rangeStart"`
	End     string   `json:"rangeEnd"`
	Gateway string   `json:"gateway"`
	Exclude []string `json:"exclude"`
}

// parse reads the network as far as it is valid.
func (n *Network) parse(raw []byte, table roles.Table) error {
	list, err := netlist.Parse(raw, "0.1.0")
	if list == nil {
		return err
	}
	n.Name = list.Name
	for _, p := range list.Plugins {
		n.addPlugin(p, table)
		for _, in := range p.Fused {
			n.addPlugin(in, table)
		}
	}
	return err
}

func (n *Network) addPlugin(p netlist.Plugin, table roles.Table) {
	n.Types = append(n.Types, p.Type)
	_, own := table.Lookup(p.Type)
	n.OwnTypes = n.OwnTypes || own
	var c pluginConf
	if json.Unmarshal(p.Conf, &c) != nil {
		return // lint reports it
	}
	isOverlay := p.Type == "flannel" || p.Type == "vxlan"
	n.Overlay = n.Overlay || isOverlay
	switch {
	case p.Type == "bridge":
		n.Bridge = cmp.Or(c.Bridge, defaultBridge)
	case isOverlay:
		n.Bridge = cmp.Or(c.Delegate.Bridge, defaultBridge)
		n.Types = append(n.Types, "bridge", "host-local")
	}
	for _, text := range slices.Concat(c.EgressAddress, c.Delegate.EgressAddress) {
		if a, err := roles.ParseAddr(text); err == nil { // lint reports it
			n.Egress = append(n.Egress, a)
		}
	}
	if c.IPMasq || len(n.Egress) > 0 {
		n.Features = append(n.Features, "nftables")
	}
	if c.MACSpoof {
		n.Features = append(n.Features, "nftables-bridge")
	}
	if c.LinkType == "netkit" {
		n.Features = append(n.Features, "link-netkit")
	}
	if c.Kubeconfig != "" {
		n.Kube = append(n.Kube, c.Kubeconfig)
	}
	if c.IPAM.Type != "" {
		n.Types = append(n.Types, c.IPAM.Type)
	}
	if c.IPAM.Type != "host-local" {
		return
	}
	for _, set := range append(c.IPAM.Ranges, []rangeConf{c.IPAM.rangeConf}) {
		for _, one := range set {
			n.addRange(one)
		}
	}
}

func (n *Network) addRange(c rangeConf) {
	p, err := netip.ParsePrefix(c.Subnet)
	if err != nil {
		return
	}
	hosts := leasing.Hosts(p)
	if a, err := netip.ParseAddr(c.Start); err == nil {
		hosts.Lo = a
	}
	if a, err := netip.ParseAddr(c.End); err == nil {
		hosts.Hi = a
	}
	gateway, err := netip.ParseAddr(c.Gateway)
	if err != nil {
		gateway = leasing.Hosts(p).Lo
	}
	cuts := []leasing.Interval{leasing.Single(gateway)}
	for _, e := range c.Exclude {
		if cut, err := netip.ParsePrefix(e); err == nil {
			cuts = append(cuts, leasing.Whole(cut))
		} else if a, err := netip.ParseAddr(e); err == nil {
			cuts = append(cuts, leasing.Single(a))
		}
	}
	n.Ranges = append(n.Ranges, Range{Subnet: p.Masked(), Lo: hosts.Lo, Hi: hosts.Hi, Size: size(hosts, cuts)})
}

// size counts the addresses of an interval outside of the cuts, or returns 0 if there are many.
func size(of leasing.Interval, cuts []leasing.Interval) int {
	const many = 1 << 16
	n := 0
	for _, i := range leasing.Subtract(of, cuts) {
		for a := i.Lo; i.Contains(a); a = a.Next() {
			n++
			if n > many {
				return 0
			}
		}
	}
	return n
}

// choose sets the network that the runtime uses.
func (rt *Runtime) choose(all []*Network) {
	for _, n := range all {
		switch {
		case rt.ListsOnly && filepath.Ext(n.Path) != ".conflist":
		case n.IsUnusable && rt.SkipsFaulty:
		case rt.Default != "" && n.Name != rt.Default:
		case n.IsUnusable:
			rt.Why = fmt.Sprintf("%s is the first file of %s, and faulty", filepath.Base(n.Path), rt.Dir)
			return
		case rt.Default != "":
			rt.Network, rt.Why = n, fmt.Sprintf("the configuration names %q", rt.Default)
			return
		default:
			rt.Network, rt.Why = n, "the first file of "+rt.Dir
			return
		}
	}
	rt.Why = "no usable file in " + rt.Dir
	if rt.Default != "" {
		rt.Why = fmt.Sprintf("no file in %s has the network %q", rt.Dir, rt.Default)
	}
}

// readPlugins finds the plugins of the used network.
func (r *reader) readPlugins(rt *Runtime) {
	if rt.Network == nil {
		return
	}
	var seen []string
	for _, typ := range rt.Network.Types {
		if slices.Contains(seen, typ) || strings.Contains(typ, "/") {
			continue
		}
		seen = append(seen, typ)
		p, err := view.Ask(r.f.Host, "plugin: "+typ+" in "+strings.Join(rt.PluginDirs, ":"), func() (Plugin, error) {
			p := r.o.Look(rt.PluginDirs, typ)
			return p, p.Writable
		})
		p.Writable = err
		p.Type, p.Runtime, p.Dirs = typ, rt.Name, rt.PluginDirs
		_, p.Role = r.o.Table.Lookup(typ)
		p.Home, p.Install = filepath.Dir(p.Path) == r.o.Home || p.Path == "" && slices.Contains(rt.PluginDirs, r.o.Home), rt.Install
		if p.Home {
			p.Install = r.o.Install
		}
		r.f.Plugins = append(r.f.Plugins, p)
	}
}

// readKubeconfig reads when the credentials of a kubeconfig end.
func readKubeconfig(path string) (Kubeconfig, error) {
	k := Kubeconfig{Path: path}
	c, err := rest.Kubeconfig(path)()
	if err != nil {
		return k, err
	}
	cert := c.TLS.Cert
	if c.TLS.CertFile != "" {
		if cert, err = web.ReadFile(c.TLS.CertFile); err != nil {
			return k, err
		}
	}
	if block, _ := pem.Decode(cert); block != nil {
		if parsed, err := x509.ParseCertificate(block.Bytes); err == nil {
			k.Cert = parsed.NotAfter
		}
	}
	token := []byte(c.Token)
	if c.TokenFile != "" {
		token, _ = web.ReadFile(c.TokenFile) // Kubeconfig has read it
	}
	k.Token = tokenEnd(string(token))
	return k, nil
}

// tokenEnd returns the time of the claim "exp" of a JSON Web Token (RFC 7519), or zero.
func tokenEnd(token string) time.Time {
	parts := strings.Split(strings.TrimSpace(token), ".")
	if len(parts) != 3 {
		return time.Time{}
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	var claims struct {
		Exp int64 `json:"exp"`
	}
	if err != nil || json.Unmarshal(raw, &claims) != nil || claims.Exp <= 0 {
		return time.Time{}
	}
	return time.Unix(claims.Exp, 0)
}

// services reads the ranges of services from the manifests of the control plane, which only its
// nodes have.
func services() (all []netip.Prefix, unread error) {
	flag := regexp.MustCompile(`--service-cluster-ip-range=([0-9a-fA-F.:/,]+)`)
	for _, name := range []string{"kube-apiserver.yaml", "kube-controller-manager.yaml"} {
		raw, err := smallfile.Read(filepath.Join("/etc/kubernetes/manifests", name), lint.MaxSize)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			unread = errors.Join(unread, err)
		}
		for _, m := range flag.FindAllSubmatch(raw, -1) {
			for text := range strings.SplitSeq(string(m[1]), ",") {
				if p, err := netip.ParsePrefix(text); err == nil && !slices.Contains(all, p.Masked()) {
					all = append(all, p.Masked())
				}
			}
		}
	}
	return all, unread
}
