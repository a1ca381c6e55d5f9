package netops

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/afpacket"
)

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
