package path

import (
	"net/netip"
	"os"

	"github.com/cnibox/cnibox/netops/tunnel"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/call/recovery"
	"github.com/cnibox/cnibox/roles/netpolicy"
	"github.com/cnibox/cnibox/roles/see/doctor"
	"github.com/cnibox/cnibox/roles/see/inventory"
	"github.com/cnibox/cnibox/roles/see/view"
	"github.com/cnibox/cnibox/store"
)

// inventory returns what is attached.
func (w *walker) inventory() (*inventory.Inventory, error) {
	dump, err := view.Ask(w.host, "node.db", func() (*store.Dump, error) { return inventory.Export(w.ctx, w.node) })
	if err != nil {
		return nil, err
	}
	seen, err := view.Ask(w.host, "attachments", func() (*inventory.Seen, error) { return inventory.See(w.ctx, w.node, dump) })
	if err != nil {
		return nil, err
	}
	seen.Dump = dump
	return seen.Inventory()
}

// caches returns the runtimes' cached results by label. Those that cannot be read have no part in a path.
func (w *walker) caches() map[string]*recovery.CacheEntry {
	all := map[string]*recovery.CacheEntry{}
	dirs, _ := view.Ask(w.host, "directories of cached results", func() ([]string, error) { return recovery.CacheDirs(w.node.Store.RunDir()), nil })
	for _, dir := range dirs {
		found, _ := doctor.ReadCached(w.host, dir)
		for _, c := range found.Entries {
			all[attachment.Label(c.Key())] = c
		}
	}
	return all
}

// networks returns those of the runtimes.
func (w *walker) networks() ([]*doctor.Network, error) {
	return view.Ask(w.host, "networks", w.Networks)
}

// denied returns the verdict of network policies that denies a connection, or nil.
func (w *walker) denied(f netpolicy.Flow) (*netpolicy.Verdict, error) {
	question := "policy: " + f.Protocol + " from " + f.Client.String() + " to " + f.Target()
	return view.Ask(w.host, question, func() (*netpolicy.Verdict, error) { return w.Denied(w.links, f) })
}

// isHost reports whether the namespace at a path is the host's.
func (w *walker) isHost(in *view.Namespace, path string) (bool, error) {
	return view.Ask(w.host, "is host: "+path, func() (bool, error) { return w.net.IsHost(in.Opened()) })
}

// heldEgress asks the agent whether a packet leaves the cluster with an address of the pod's namespace.
func (w *walker) heldEgress(from, to netip.Addr) (egressAnswer, error) {
	return view.Ask(w.host, "agent's egress: "+from.String()+" to "+to.String(), func() (egressAnswer, error) {
		return askEgress(w.ctx, w.node.Store, from, to)
	})
}

// acceptsNode reports whether the set of known nodes has an address.
func (w *walker) acceptsNode(a netip.Addr) (bool, error) {
	return view.Ask(w.host, "known node: "+a.String(), func() (bool, error) { return tunnel.Accepts(w.ctx, a) })
}

// tunnelFix returns the command that makes the objects of a tunnel again.
func (w *walker) tunnelFix() string {
	return w.command("tunnel fix", func(name string) string { return doctor.TunnelFix(w.managed, name) })
}

// fixAgent returns the command that starts this node's agent again.
func (w *walker) fixAgent() string { return w.command("agent fix", doctor.AgentFix) }

func (w *walker) command(question string, of func(node string) string) string {
	fix, _ := view.Ask(w.host, question, func() (string, error) {
		name, _ := os.Hostname() // it has one
		return of(name), nil
	})
	return fix
}
