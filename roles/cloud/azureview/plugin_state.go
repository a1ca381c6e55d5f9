package azureview

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/store"
)

// transparentMode is the only mode whose containers can be taken over. In the others azure's
// plugin has rules in ebtables or a namespace of its own.
const transparentMode = "transparent"

// PluginState is what azure's own plugins wrote into the two files.
type PluginState struct {
	// Attached are the running containers, as records.
	Attached []store.Attachment
	// Ended counts the endpoints whose container does not exist any more.
	Ended int
	// leases are of the running containers, and of those that have an address but no endpoint.
	leases []store.Lease
}

// networkFile has the keys of azure-vnet.json that are read, of v1.0.17 up to v1.5.
type networkFile struct {
	Network struct {
		ExternalInterfaces map[string]struct {
			MacAddress net.HardwareAddr
			Networks   map[string]struct {
				Mode      string
				Endpoints map[string]fileEndpoint
			}
		}
	}
}

// fileEndpoint is one interface of a container.
type fileEndpoint struct {
	ContainerID, IfName, HostIfName string
	NetworkNameSpace                string
	PODName, PODNameSpace           string
	MacAddress                      net.HardwareAddr
	IPAddresses                     []net.IPNet
	Gateways                        []net.IP
	Routes                          []struct {
		Dst net.IPNet
		Gw  net.IP
	}
	DNS struct {
		Suffix  string
		Servers []string
	}
	SecondaryInterfaces map[string]json.RawMessage
}

// addressFile has the keys of azure-vnet-ipam.json that are read.
type addressFile struct {
	IPAM struct {
		AddressSpaces map[string]struct {
			Pools map[string]struct {
				Addresses map[netip.Addr]struct {
					ID    string
					InUse bool
				}
			}
		}
	}
}

// ReadPluginState reads the files of azure's plugins and finds their containers. It returns
// nil if there is no file, or if cnibox wrote it. It changes nothing.
func ReadPluginState(ctx context.Context, h *roles.Host) (*PluginState, error) {
	dir, err := openDir(defaultDir(h.Store.RunDir()))
	if err != nil {
		return nil, err
	}
	defer dir.close()
	var network networkFile
	if there, err := dir.decode(Network, &network); err != nil || !there {
		return nil, err
	}
	var addresses addressFile
	if _, err := dir.decode(Addresses, &addresses); err != nil {
		return nil, err
	}
	r := stateReader{h: h, state: &PluginState{}, users: map[netip.Addr]string{}, known: map[netip.Addr]bool{}, now: h.Now()}
	for _, space := range addresses.IPAM.AddressSpaces {
		for _, pool := range space.Pools {
			for a, one := range pool.Addresses {
				if one.InUse {
					r.users[a] = one.ID
				}
			}
		}
	}
	var errs []error
	for master, external := range network.Network.ExternalInterfaces {
		for name, n := range external.Networks {
			r.networks = append(r.networks, name)
			for id, e := range n.Endpoints {
				to := note{Mode: n.Mode, Master: master, MasterMAC: external.MacAddress.String()}
				if err := r.endpoint(ctx, name, &e, to); err != nil {
					errs = append(errs, fmt.Errorf("endpoint %q of network %q, pod %s/%s: %w", id, name, e.PODNameSpace, e.PODName, err))
				}
			}
		}
	}
	sorting.Func(r.state.Attached, func(a, b store.Attachment) int { return bytes.Compare(a.Encode(), b.Encode()) })
	return r.state, errors.Join(append(errs, r.addressesWithoutEndpoint())...)
}

// decode reads a file. It reports false if the file is absent or empty, or if cnibox wrote it.
func (d *directory) decode(f File, into any) (bool, error) {
	if d.revision(f) != (store.Revision{}) {
		return false, nil
	}
	file, err := d.open(string(f))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open %q in %q: %w", f, d.path, err)
	}
	defer file.Close()
	raw, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	switch {
	case err != nil:
	case len(raw) > maxFile:
		err = fmt.Errorf("it is larger than %d bytes", maxFile)
	case len(raw) == 0:
		return false, nil
	default:
		err = json.Unmarshal(raw, into)
	}
	if err != nil {
		err = fmt.Errorf("read %q in %q: %w: %w", f, d.path, roles.ErrDecode, err)
	}
	return true, err
}

// maxFile is the largest size of a file in bytes. An endpoint takes about 2 kB.
const maxFile = 16 << 20

// stateReader fills a PluginState.
type stateReader struct {
	h     *roles.Host
	state *PluginState
	// users are the container IDs of the addresses in use.
	users map[netip.Addr]string
	// known are the addresses of all endpoints.
	known    map[netip.Addr]bool
	networks []string
	now      time.Time
}

// endpoint adds a running container. The endpoint of another one is only counted, and its
// addresses are free: azure's plugin keeps the endpoint if its DEL was not called.
func (r *stateReader) endpoint(ctx context.Context, network string, e *fileEndpoint, n note) error {
	a := store.Attachment{
		Key:      store.Key{Network: network, ContainerID: e.ContainerID, IfName: e.IfName},
		HostLink: e.HostIfName, MAC: e.MacAddress.String(), Imported: true,
		Created: r.now, Updated: r.now, Program: r.h.Program,
	}
	if e.ContainerID == "" || e.IfName == "" {
		return errors.New("it has no container ID or no interface: delete the pod first")
	}
	if e.PODName != "" {
		a.Pod = e.PODNameSpace + "/" + e.PODName
	}
	for _, ip := range e.IPAddresses {
		ones, _ := ip.Mask.Size()
		p := netip.PrefixFrom(addrOf(ip.IP), ones)
		if !p.IsValid() {
			return fmt.Errorf("%s is not an address with its subnet", ip.IP)
		}
		a.Addresses = append(a.Addresses, p)
		r.known[p.Addr()] = true
	}
	made, err := r.running(ctx, &a, e)
	if made == nil || err != nil {
		if err == nil {
			r.state.Ended++
		}
		return err
	}
	if n.Mode != transparentMode || len(e.SecondaryInterfaces) > 0 {
		return fmt.Errorf("it is attached in the mode %q with %d secondary interfaces, and only %q without any can be taken over: drain the node, reboot it, and install cnibox before pods start",
			n.Mode, len(e.SecondaryInterfaces), transparentMode)
	}
	changes, err := json.Marshal(attachment.Inverses(made))
	if err != nil {
		return err
	}
	a.Parts = []store.Part{{Role: role, State: store.Done, Changes: changes, Time: r.now}}
	a.Note, err = e.note(n)
	if err != nil {
		return err
	}
	for i, p := range a.Addresses {
		if _, used := r.users[p.Addr()]; !used {
			return fmt.Errorf("%s has no entry in %s: only addresses of azure-vnet-ipam can be taken over", p.Addr(), Addresses)
		}
		r.state.leases = append(r.state.leases, r.lease(p.Addr(), i, &a))
	}
	r.state.Attached = append(r.state.Attached, a)
	return nil
}

func (r *stateReader) lease(a netip.Addr, set int, of *store.Attachment) store.Lease {
	return store.Lease{Address: a, Owner: of.Key, Set: set, Netns: of.Netns, Pod: of.Pod, Time: r.now, Imported: true}
}

// running returns the objects of a container, or nil if the container does not exist. It
// sets a.Netns.
func (r *stateReader) running(ctx context.Context, a *store.Attachment, e *fileEndpoint) ([]netops.Object, error) {
	ns, err := attachment.OpenIfPresent(r.h, e.NetworkNameSpace)
	if ns == nil || err != nil {
		return nil, err
	}
	defer ns.Close()
	host, err := r.h.Net.IsHost(ns)
	if err != nil || host {
		return nil, err // the path is another process's now
	}
	end, err := r.h.Net.HostEnd(ctx, ns, a.IfName)
	if errors.Is(err, netops.ErrNotExist) {
		return nil, nil // without its link the container has no network
	}
	if err != nil {
		return nil, err
	}
	if end.Name != a.HostLink {
		return nil, fmt.Errorf("the other end of its %q is %q, not %q: delete the pod first", a.IfName, end.Name, a.HostLink)
	}
	have, err := r.h.Net.Addresses(ctx, ns, a.IfName)
	if err != nil {
		return nil, err
	}
	a.Netns = attachment.ThisNetns(e.NetworkNameSpace, ns)
	made := []netops.Object{&netops.Link{In: netops.Host, Name: end.Name, Kind: end.Kind, Alias: attachment.Label(a.Key)}}
	for _, p := range a.Addresses {
		if !slices.Contains(have, p) {
			return nil, fmt.Errorf("its %q does not have %s: delete the pod first", a.IfName, p)
		}
		made = append(made,
			&netops.Addr{In: netops.Container, Link: a.IfName, Address: p},
			&netops.Route{In: netops.Host, Link: end.Name, Dst: netip.PrefixFrom(p.Addr(), p.Addr().BitLen())})
	}
	routes, err := r.h.Net.Routes(ctx, ns, unix.RT_TABLE_MAIN)
	for _, rt := range routes {
		if rt.Link == a.IfName && rt.Via.IsValid() {
			rt.In = netops.Container
			made = append(made, &rt)
			a.Routes = append(a.Routes, rt.Dst.String()+" via "+rt.Via.String())
		}
	}
	return made, err
}

// note returns the Note of an endpoint.
func (e *fileEndpoint) note(n note) (json.RawMessage, error) {
	n.Suffix, n.Servers = e.DNS.Suffix, e.DNS.Servers
	for _, gw := range e.Gateways {
		n.Gateways = append(n.Gateways, addrOf(gw))
	}
	for _, rt := range e.Routes {
		ones, _ := rt.Dst.Mask.Size()
		n.Routes = append(n.Routes, noteRoute{Dst: netip.PrefixFrom(addrOf(rt.Dst.IP), ones), Via: addrOf(rt.Gw)})
	}
	return json.Marshal(&n)
}

// addressesWithoutEndpoint keeps the addresses in use that no endpoint has, because another
// plugin may have asked azure-vnet-ipam for them. DEL or GC of their container frees them.
func (r *stateReader) addressesWithoutEndpoint() error {
	var errs []error
	slices.Sort(r.networks)
	for a, id := range r.users {
		if r.known[a] {
			continue
		}
		if id == "" || len(r.networks) == 0 {
			errs = append(errs, fmt.Errorf("%s in %s is in use by an unknown container: restart the node", a, Addresses))
			continue
		}
		of := store.Attachment{Key: store.Key{Network: r.networks[0], ContainerID: id, IfName: "eth0"}}
		r.state.leases = append(r.state.leases, r.lease(a, 0, &of))
	}
	return errors.Join(errs...)
}

// Import makes attachments and leases of the running containers. The hosts' ends get
// cnibox's label; nothing else of a container changes. It can be repeated. The caller holds
// the lock of azure's plugin.
func (s *PluginState) Import(ctx context.Context, h *roles.Host) error {
	var labels netops.Spec
	for i := range s.Attached {
		a := &s.Attached[i]
		labels.Add(&netops.Link{In: netops.Host, Name: a.HostLink, Alias: attachment.Alias(a.Key, a.Addresses)})
	}
	if err := h.Net.Ensure(ctx, labels, nil); err != nil {
		return err
	}
	err := h.Store.Update(ctx, func(tx *store.Tx) error {
		for i := range s.Attached {
			if err := tx.PutAttachment(&s.Attached[i]); err != nil {
				return err
			}
		}
		for _, l := range s.leases {
			pool, err := tx.Pool(store.PoolID{DataDir: store.CloudDataDir, Network: l.Owner.Network})
			if err != nil {
				return err
			}
			if held, err := pool.Lease(l.Address); err == nil && held.Imported && held.Owner != l.Owner {
				// Azure's plugin may have given it to another container since.
				if err := pool.Release(l.Address); err != nil {
					return err
				}
			}
			var taken *store.TakenError
			if err := pool.Reserve(l); err != nil && (!errors.As(err, &taken) || taken.Owner != l.Owner) {
				return err
			}
		}
		return nil
	})
	if err != nil {
		err = fmt.Errorf("import %s and %s: %w", Network, Addresses, err)
	}
	return err
}

// WriteAll writes both files.
func WriteAll(ctx context.Context, h *roles.Host) error {
	return write(ctx, h, defaultDir(h.Store.RunDir()), []File{Network, Addresses})
}

// HandOver writes both files for azure's plugins, without the mark that cnibox wrote them. The
// caller holds the lock of azure's plugin.
func HandOver(ctx context.Context, h *roles.Host) error {
	dir, err := openDir(defaultDir(h.Store.RunDir()))
	if err != nil {
		return err
	}
	defer dir.close()
	files := []File{Network, Addresses}
	docs, err := render(ctx, h, files)
	if err != nil {
		return err
	}
	for i, doc := range docs {
		text, _, _ := bytes.Cut(doc, []byte(",\n\t\""+ownKey+"\": {"))
		if err := dir.replace(files[i], append(text, "\n}"...)); err != nil {
			return err
		}
	}
	return dir.sync()
}

// Return forgets the imported containers. Azure's plugin knows them from the files. The
// caller holds its lock.
func Return(ctx context.Context, h *roles.Host) error {
	imported, err := Imported(ctx, h)
	if err != nil {
		return err
	}
	var labels netops.Spec
	for i := range imported {
		l, err := h.Net.Link(ctx, nil, imported[i].HostLink)
		if err == nil && attachment.Labelled(l) {
			labels.Add(&netops.Link{In: netops.Host, Name: l.Name, Unset: &netops.Unset{Alias: true}})
		}
		if err != nil && !errors.Is(err, netops.ErrNotExist) {
			return err
		}
	}
	if err := h.Net.Ensure(ctx, labels, nil); err != nil {
		return err
	}
	return h.Store.Update(ctx, func(tx *store.Tx) error {
		for i := range imported {
			if _, err := tx.DeleteLeases(imported[i].Key); err != nil {
				return err
			}
			if err := tx.DeleteAttachment(imported[i].Key); err != nil {
				return err
			}
		}
		return nil
	})
}

// Imported returns the imported attachments that no other role extended: azure's plugins can
// detach these.
func Imported(ctx context.Context, h *roles.Host) (all []store.Attachment, err error) {
	all, err = store.Read(ctx, h.Store, func(tx *store.Tx) ([]store.Attachment, error) { return tx.Attachments("") })
	return slices.DeleteFunc(all, func(a store.Attachment) bool { return !a.Imported || len(a.Parts) > 1 }), err
}

// LockPlugin takes the lock that azure-vnet of v1.4.15 and newer holds during each call. The
// error is fs.ErrNotExist if there is no lock file.
func LockPlugin(ctx context.Context, h *roles.Host) (unlock func(), err error) {
	dir, err := openDir(filepath.Join(defaultDir(h.Store.RunDir()), "azure-vnet"))
	if err != nil {
		return nil, err
	}
	defer dir.close()
	f, err := dir.open("azure-vnet.lock")
	if err != nil {
		return nil, fmt.Errorf("open %q in %q: %w", "azure-vnet.lock", dir.path, err)
	}
	got := make(chan error, 1)
	go func() { got <- unix.Flock(int(f.Fd()), unix.LOCK_EX) }()
	select {
	case err := <-got:
		if err != nil {
			return nil, errors.Join(fmt.Errorf("lock %q: %w", f.Name(), err), f.Close())
		}
		return func() { f.Close() }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("lock %q: %w: azure-vnet holds it", f.Name(), ctx.Err())
	}
}
