package dhcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/record"
	"github.com/cnibox/cnibox/store"
)

// errGone means that the interface is no more, or its namespace, or that
// another namespace is in its place.
var errGone = errors.New("the interface is gone")

// kindIPvlan is the kind of links that share the hardware address of their parent.
const kindIPvlan = "ipvlan"

// place is an interface in a container. Nothing of it is held open between two
// exchanges: an open namespace would outlive its container.
type place struct {
	netns store.Netns
	// index is the interface's; 0 on records that do not tell it.
	index int
	// ifName and macs are what it had at ADD. It may be renamed since.
	ifName string
	macs   []string
}

// visit is a place that is open.
type visit struct {
	net  *netops.Net
	ns   *netops.Namespace
	link netops.LinkInfo
	mac  net.HardwareAddr
}

// openPlace opens what is at a path now.
func openPlace(ctx context.Context, path, ifName string) (place, *visit, error) {
	v, err := enter(path, func(v *visit) (err error) {
		v.link, err = v.net.Link(ctx, v.ns, ifName)
		return err
	})
	if err != nil {
		return place{}, nil, err
	}
	return place{netns: record.ThisNetns(path, v.ns), index: v.link.Index, ifName: ifName}, v, nil
}

// open opens the place if it is still the same. The error wraps errGone if it
// certainly is not.
func (p place) open(ctx context.Context) (*visit, error) {
	v, err := enter(p.netns.Path, func(v *visit) error {
		if dev, inode := v.ns.ID(); dev != p.netns.Dev || inode != p.netns.Inode {
			return fmt.Errorf("%w: %q is another namespace now", errGone, p.netns.Path)
		}
		links, err := v.net.Links(ctx, v.ns)
		if err != nil {
			return err
		}
		v.link, err = p.find(links)
		return err
	})
	if errors.Is(err, netops.ErrNoNetns) && record.NetnsGone(p.netns) {
		return nil, fmt.Errorf("%w: %w", errGone, err)
	}
	return v, err
}

// find tells which of a namespace's links is the place's: the one of its index,
// else the one of its name, else, where the index is not known, the one of its
// hardware address. Of several that have that, as ipvlans do, each may be the
// one: it is not gone then.
func (p place) find(links []netops.LinkInfo) (netops.LinkInfo, error) {
	for _, is := range []func(netops.LinkInfo) bool{
		func(l netops.LinkInfo) bool { return l.Index == p.index },
		func(l netops.LinkInfo) bool { return l.Name == p.ifName },
	} {
		if i := slices.IndexFunc(links, is); i >= 0 {
			return links[i], nil
		}
	}
	var same []netops.LinkInfo
	for _, l := range links {
		if p.index == 0 && slices.Contains(p.macs, l.MAC) {
			same = append(same, l)
		}
	}
	switch len(same) {
	case 0:
		return netops.LinkInfo{}, fmt.Errorf("%w: no %q in %q, nor under another name", errGone, p.ifName, p.netns.Path)
	case 1:
		return same[0], nil
	}
	return netops.LinkInfo{}, fmt.Errorf("link %q: %w: %d others have its hardware address", p.ifName, netops.ErrNotExist, len(same))
}

// enter opens a namespace and, in it, the link that look finds.
func enter(path string, look func(*visit) error) (*visit, error) {
	v := &visit{net: netops.New(netops.Options{})}
	var err error
	if v.ns, err = v.net.OpenNamespace(path); err != nil {
		return nil, fmt.Errorf("%w: %w", roles.ErrNetns, err)
	}
	if err = look(v); err == nil {
		err = v.address()
	}
	if err != nil {
		v.close()
		return nil, err
	}
	return v, nil
}

// address reads the link's hardware address, which DHCP needs.
func (v *visit) address() error {
	var err error
	if v.mac, err = net.ParseMAC(v.link.MAC); err != nil || len(v.mac) != 6 {
		return fmt.Errorf("link %q has no Ethernet address, DHCP needs one: %w", v.link.Name, netops.ErrNotSupported)
	}
	return nil
}

func (v *visit) close() {
	_ = v.ns.Close()
	_ = v.net.Close()
}

// up sets the interface up if it is not: a plugin of another's may leave that
// to IPAM.
func (v *visit) up(ctx context.Context) error {
	if v.link.Up {
		return nil
	}
	return v.ensure(ctx, &netops.Link{In: netops.Container, Name: v.link.Name, Up: true})
}

func (v *visit) ensure(ctx context.Context, o ...netops.Object) error {
	return v.net.Ensure(ctx, netops.Spec{Objects: o}, v.ns)
}

// timing is what the daemon's flags say of exchanges.
type timing struct {
	// request bounds one exchange with a server, which begins anew then.
	request time.Duration
	// resendMax is the longest delay between two messages, and between two tries.
	resendMax time.Duration
	// resend is when ADD gives up.
	resend time.Duration
}

// repeat is how messages are repeated within one exchange, after a first delay.
func (t timing) repeat(first time.Duration) retransmission {
	return retransmission{first: first, max: t.resendMax, total: t.request}
}
