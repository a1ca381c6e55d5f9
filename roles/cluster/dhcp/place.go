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
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/store"
)

// errGone means that the interface or its namespace no longer exists, or that another namespace is at
// its path.
var errGone = errors.New("the interface is gone")

// kindIPvlan is the kind of links that share their parent's hardware address.
const kindIPvlan = "ipvlan"

// place identifies an interface in a container. Between two exchanges it has no open namespace,
// because an open namespace would outlive its container.
type place struct {
	netns store.Netns
	index int
	// ifName is the interface's name at ADD. It may have been renamed since.
	ifName string
}

// visit is an open place.
type visit struct {
	net  *netops.Net
	ns   *netops.Namespace
	link netops.LinkInfo
	mac  net.HardwareAddr
}

// openPlace opens the present namespace at a path.
func openPlace(ctx context.Context, path, ifName string) (place, *visit, error) {
	v, err := enter(path, func(v *visit) (err error) {
		v.link, err = v.net.Link(ctx, v.ns, ifName)
		return err
	})
	if err != nil {
		return place{}, nil, err
	}
	return place{netns: attachment.ThisNetns(path, v.ns), index: v.link.Index, ifName: ifName}, v, nil
}

// open opens the place if it is the same as at ADD. If it certainly is not, the error wraps errGone.
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
	if errors.Is(err, netops.ErrNoNetns) && attachment.NetnsGone(p.netns) {
		return nil, fmt.Errorf("%w: %w", errGone, err)
	}
	return v, err
}

// find returns the place's link: by index, else by name.
func (p place) find(links []netops.LinkInfo) (netops.LinkInfo, error) {
	for _, is := range []func(netops.LinkInfo) bool{
		func(l netops.LinkInfo) bool { return l.Index == p.index },
		func(l netops.LinkInfo) bool { return l.Name == p.ifName },
	} {
		if i := slices.IndexFunc(links, is); i >= 0 {
			return links[i], nil
		}
	}
	return netops.LinkInfo{}, fmt.Errorf("%w: no %q in %q, nor under another name", errGone, p.ifName, p.netns.Path)
}

// enter opens a namespace and, in it, the link that look finds.
func enter(path string, look func(*visit) error) (*visit, error) {
	v := &visit{net: netops.New(netops.Options{})}
	var err error
	v.ns, err = v.net.OpenNamespace(path)
	if err != nil {
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

// address parses the link's hardware address, which DHCP needs.
func (v *visit) address() error {
	var err error
	v.mac, err = net.ParseMAC(v.link.MAC)
	if err != nil || len(v.mac) != 6 {
		return fmt.Errorf("link %q has no Ethernet address, DHCP needs one: %w", v.link.Name, netops.ErrNotSupported)
	}
	return nil
}

func (v *visit) close() {
	_ = v.ns.Close()
	_ = v.net.Close()
}

// up sets the interface up if it is down. A third-party interface plugin may leave
// that to IPAM.
func (v *visit) up(ctx context.Context) error {
	if v.link.Up {
		return nil
	}
	return v.ensure(ctx, &netops.Link{In: netops.Container, Name: v.link.Name, Up: true})
}

func (v *visit) ensure(ctx context.Context, o ...netops.Object) error {
	return v.net.Ensure(ctx, netops.Spec{Objects: o}, v.ns)
}

// Timing has the values of the daemon's flags for exchanges.
type Timing struct {
	// Request bounds one exchange with a server. A new one follows.
	Request time.Duration
	// ResendMax is the longest delay between two messages, and between two attempts.
	ResendMax time.Duration
	// Resend is the time after which ADD fails.
	Resend time.Duration
}

// repeat returns the retransmission of the messages of one exchange. first is the first delay.
func (t Timing) repeat(first time.Duration) retransmission {
	return retransmission{first: first, max: t.ResendMax, total: t.Request}
}
