package dhcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/node"
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
	netns  store.Netns
	ifName string
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
	v, err := enter(ctx, path, ifName)
	if err != nil {
		return place{}, nil, err
	}
	return place{netns: node.ThisNetns(path, v.ns), ifName: ifName}, v, nil
}

// open opens the place if it is still the same. The error wraps errGone if it
// certainly is not.
func (p place) open(ctx context.Context) (*visit, error) {
	v, err := enter(ctx, p.netns.Path, p.ifName)
	if err != nil {
		if errors.Is(err, netops.ErrNoNetns) && node.NetnsGone(p.netns) || errors.Is(err, netops.ErrNotExist) {
			return nil, fmt.Errorf("%w: %w", errGone, err)
		}
		return nil, err
	}
	if dev, inode := v.ns.ID(); dev != p.netns.Dev || inode != p.netns.Inode {
		v.close()
		return nil, fmt.Errorf("%w: %q is another namespace now", errGone, p.netns.Path)
	}
	return v, nil
}

func enter(ctx context.Context, path, ifName string) (*visit, error) {
	v := &visit{net: netops.New(netops.Options{})}
	var err error
	if v.ns, err = v.net.OpenNamespace(path); err != nil {
		return nil, fmt.Errorf("%w: %w", roles.ErrNetns, err)
	}
	if err := v.look(ctx, ifName); err != nil {
		v.close()
		return nil, err
	}
	return v, nil
}

func (v *visit) look(ctx context.Context, ifName string) error {
	var err error
	if v.link, err = v.net.Link(ctx, v.ns, ifName); err != nil {
		return err
	}
	if v.mac, err = net.ParseMAC(v.link.MAC); err != nil || len(v.mac) != 6 {
		return fmt.Errorf("link %q has no Ethernet address, DHCP needs one: %w", ifName, netops.ErrNotSupported)
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
