// Package packets sends packets on single links and observes packets: at links, in nftables, and where the
// kernel drops them. In all functions a nil Namespace is the host's.
package packets

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/internal/afpacket"
	"github.com/cnibox/cnibox/netops/internal/dropmon"
)

// Drop is a packet that the kernel dropped, and why.
type Drop = dropmon.Drop

// Drops receives reports of dropped packets, of all namespaces of the machine.
type Drops = dropmon.Monitor

// OpenDrops turns the reports on. The error wraps netops.ErrNotSupported if the kernel has no
// reports, or not in this namespace, and netops.ErrBusy if another program receives them.
func OpenDrops(ctx context.Context) (*Drops, error) { return dropmon.Open(ctx) }

// Log receives packets that rules of nftables log.
type Log = dropmon.Log

// OpenLog becomes the reader of a group of nfnetlink_log in the network namespace of the calling thread. The error wraps netops.ErrBusy if
// it has another reader.
func OpenLog(ctx context.Context, group uint16) (*Log, error) { return dropmon.OpenLog(ctx, group) }

// Capture receives copies of the packets of several links in the order of their times.
type Capture = afpacket.Capture

// Packet is a packet at a link, with its Ethernet header and VLAN tag.
type Packet = afpacket.Packet

// End is a link at which packets are captured.
type End struct {
	Namespace *netops.Namespace
	Link      string
}

// OpenCapture begins to capture packets. The filter is a program of classic BPF. It returns how many bytes
// of a packet are kept; 0 drops the packet. The sockets keep the namespaces until Close.
func OpenCapture(ctx context.Context, n *netops.Net, ends []End, filter []unix.SockFilter) (*Capture, error) {
	if len(filter) == 0 || len(filter) > unix.BPF_MAXINSNS {
		return nil, fmt.Errorf("filter of %d instructions: %w: it has 1 to %d", len(filter), netops.ErrInvalid, unix.BPF_MAXINSNS)
	}
	c := &Capture{}
	for _, e := range ends {
		l, err := n.Link(ctx, e.Namespace, e.Link)
		if err == nil {
			err = e.Namespace.Run(func() error {
				return c.Add(afpacket.Link{Name: l.Name, Index: l.Index}, filter)
			})
		}
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	return c, nil
}
