// Package afpacket receives copies of the packets of links.
package afpacket

import (
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// pollInterval is the longest wait of Next, in milliseconds.
const pollInterval = 50

// Packet is a packet at a link, with its Ethernet header and VLAN tag.
type Packet struct {
	// Time is when the kernel made the copy.
	Time time.Time
	// Data is the packet or its beginning, and Size the size of the whole packet. A packet that the kernel divides
	// or joins for the network card can be larger than the MTU.
	Data []byte
	Size int
	// Outgoing reports whether the link's namespace sent the packet.
	Outgoing bool
}

// Link is a link of a namespace.
type Link struct {
	Name  string
	Index int
}

// Capture receives the packets of several links in the order of their times. Packets that two processors receive at the
// same time on one link can differ by less than a microsecond.
type Capture struct {
	rings   []*ring
	stopped bool
}

// Add adds a link of the calling thread's namespace. The filter is a program of classic BPF for a packet
// with its Ethernet header. It returns how many bytes are kept; 0 drops the packet.
func (c *Capture) Add(l Link, filter []unix.SockFilter) error {
	r := &ring{fd: -1}
	c.rings = append(c.rings, r)
	return nlconn.Explain(r.open(l, filter), fmt.Sprintf("capture on link %q", l.Name))
}

// Next waits a moment for packets and calls each for them, with the index of the link. A packet is valid
// until each returns; an error of each is returned. Until Stop, the deletion of a link is an error that wraps
// ErrNotExist. After Stop, Next returns io.EOF when everything has been read.
func (c *Capture) Next(each func(link int, p *Packet) error) error {
	behind, err := c.fill()
	if err != nil {
		return err
	}
	if len(behind) > 0 {
		return c.wait(behind)
	}
	for {
		first := -1
		for i, r := range c.rings {
			if r.left > 0 && (first < 0 || r.packet.Time.Before(c.rings[first].packet.Time)) {
				first = i
			}
		}
		if first < 0 {
			return io.EOF
		}
		r := c.rings[first]
		if err := each(first, &r.packet); err != nil {
			return err
		}
		if err := r.advance(); err != nil {
			return err
		}
		if r.left == 0 {
			return nil
		}
	}
}

// fill takes completed blocks. It returns the rings to wait for: those that have packets in a block which the kernel
// has not completed, because these may be older than the packets of other rings. If there are no packets at all, it
// returns all rings, and none after Stop.
func (c *Capture) fill() (behind []*ring, err error) {
	idle := true
	for _, r := range c.rings {
		if err := r.fill(); err != nil {
			return nil, err
		}
		idle = idle && r.left == 0
	}
	// The counters are read after all blocks were taken: what arrives later is younger.
	for _, r := range c.rings {
		if r.left > 0 {
			continue
		}
		if err := r.count(); err != nil {
			return nil, err
		}
		if r.received != r.read {
			behind = append(behind, r)
		}
	}
	if idle && len(behind) == 0 && !c.stopped {
		return c.rings, nil
	}
	return behind, nil
}

// wait waits for a completed block of the rings.
func (c *Capture) wait(rings []*ring) error {
	fds := make([]unix.PollFd, len(rings))
	for i, r := range rings {
		fds[i] = unix.PollFd{Fd: int32(r.fd), Events: unix.POLLIN}
	}
	if _, err := unix.Poll(fds, pollInterval); err != nil {
		if errors.Is(err, unix.EINTR) {
			return nil
		}
		return nlconn.Explain(err, "wait for packets")
	}
	for _, r := range rings {
		gone, err := r.isGone()
		if gone && !c.stopped {
			err = fmt.Errorf("%w any more", nlconn.ErrNotExist)
		}
		if err != nil {
			return fmt.Errorf("link %q: %w", r.name, err)
		}
	}
	return nil
}

// Stop ends the capture. Next still returns the packets that came before.
func (c *Capture) Stop() error {
	if c.stopped {
		return nil
	}
	c.stopped = true
	var errs []error
	for _, r := range c.rings {
		errs = append(errs, r.filter([]unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K}}))
	}
	return errors.Join(errs...)
}

// Dropped returns how many packets of a link were lost because they were not read fast enough.
func (c *Capture) Dropped(link int) (uint64, error) {
	r := c.rings[link]
	err := r.count()
	return r.dropped, err
}

// Close closes the sockets.
func (c *Capture) Close() error {
	var errs []error
	for _, r := range c.rings {
		errs = append(errs, r.close())
	}
	return errors.Join(errs...)
}
