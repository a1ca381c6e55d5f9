package netops

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/afpacket"
	"github.com/cnibox/cnibox/netops/internal/dropmon"
)

// Drop is a packet that the kernel dropped, and why.
type Drop = dropmon.Drop

// Drops receives reports of dropped packets, of all namespaces of the machine.
type Drops = dropmon.Monitor

// OpenDrops turns the reports on. The error wraps ErrNotSupported if the kernel has no
// reports, or not in this namespace, and ErrBusy if another program receives them.
func (n *Net) OpenDrops(ctx context.Context) (d *Drops, err error) {
	err = n.host.visit(func() (err error) {
		d, err = dropmon.Open(ctx)
		return err
	})
	return d, err
}

// Capture receives copies of the packets of several links in the order of their times.
type Capture = afpacket.Capture

// CapturedPacket is a packet at a link, with its Ethernet header and VLAN tag.
type CapturedPacket = afpacket.Packet

// CaptureEnd is a link in a namespace, or in the host's for a nil Namespace.
type CaptureEnd struct {
	Namespace *Namespace
	Link      string
}

// OpenCapture begins to capture packets. The filter is a program of classic BPF. It returns how many bytes
// of a packet are kept; 0 drops the packet. The sockets keep the namespaces until Close.
func (n *Net) OpenCapture(ctx context.Context, ends []CaptureEnd, filter []unix.SockFilter) (*Capture, error) {
	if len(filter) == 0 || len(filter) > unix.BPF_MAXINSNS {
		return nil, fmt.Errorf("filter of %d instructions: %w: it has 1 to %d", len(filter), ErrInvalid, unix.BPF_MAXINSNS)
	}
	c := &Capture{}
	for _, e := range ends {
		l, err := n.Link(ctx, e.Namespace, e.Link)
		if err == nil {
			err = n.observed(e.Namespace).visit(func() error {
				return c.Add(afpacket.Link{Name: l.Name, Index: l.Index}, filter)
			})
		}
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	return c, nil
}
