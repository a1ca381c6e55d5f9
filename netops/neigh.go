package netops

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// Neigh is a permanent neighbour entry (ARP or ND). With FDB set it is a static
// forwarding entry: of a bridge port if IP is invalid, otherwise of a VXLAN device.
type Neigh struct {
	In     Place      `json:"in"`
	Shared bool       `json:"shared,omitempty"`
	Link   string     `json:"link"`
	IP     netip.Addr `json:"ip,omitzero"`
	MAC    string     `json:"mac"`
	FDB    bool       `json:"fdb,omitempty"`
	// Replace replaces an existing entry for the address. Without it that is
	// an error.
	Replace bool `json:"replace,omitempty"`
	// Learnt is the entry that the kernel learns, with any MAC. The change and its inverse delete
	// it: a bridge floods packets to a MAC that is not behind a port any more.
	Learnt bool `json:"learnt,omitempty"`
}

// Where returns the namespace of the entry's link.
func (n *Neigh) Where() Place { return n.In }

// IsShared reports whether attachments share the entry.
func (n *Neigh) IsShared() bool { return n.Shared }

// String formats the entry as ip neighbour or bridge fdb does.
func (n *Neigh) String() string {
	var w words
	if n.FDB {
		w = words{"fdb", n.MAC}
		if n.IP.IsValid() {
			w = append(w, "dst", n.IP.String())
		}
	} else {
		w = words{"neighbour", n.IP.String(), "lladdr", n.MAC}
	}
	w.value("dev", n.Link)
	w.flag(n.Learnt, "learnt")
	w.place(n.In)
	return w.String()
}

func (n *Neigh) validate() error {
	errs := []error{checkPlace(n.In), rtnl.CheckName(n.Link), rtnl.CheckMAC(n.MAC), checkAddr("neighbour", n.IP)}
	if n.MAC == "" {
		errs = append(errs, fmt.Errorf("neighbour without a MAC: %w", ErrInvalid))
	}
	if !n.IP.IsValid() && !n.FDB {
		errs = append(errs, fmt.Errorf("neighbour without an address: %w", ErrInvalid))
	}
	return errors.Join(errs...)
}

func (n *Neigh) plan(ctx context.Context, s *session) ([]Change, error) {
	if n.Learnt {
		return []Change{{Do: Step{VerbDel, n}, Undo: &Step{VerbDel, n}}}, nil
	}
	if s.isNew(n.In, n.Link) {
		if s.lasting[linkRef{n.In, n.Link}] {
			return []Change{addition(n)}, nil
		}
		return []Change{{Do: Step{VerbAdd, n}}}, nil
	}
	have, there, err := s.neighbour(ctx, n)
	if err != nil {
		return nil, err
	}
	if there && !n.Replace {
		if n.Shared && rtnl.SameMAC(n.MAC, have.MAC) {
			return nil, nil
		}
		return nil, fmt.Errorf("%s %w: lladdr %s", n, ErrExists, have.MAC)
	}
	return []Change{addition(n)}, nil
}

func (n *Neigh) verify(ctx context.Context, s *session) ([]Difference, error) {
	if n.Learnt {
		return nil, nil
	}
	have, there, err := s.neighbour(ctx, n)
	if err != nil && !errors.Is(err, ErrNotExist) {
		return nil, err
	}
	if !there {
		return absentIf(nil, n)
	}
	d := differences{object: n}
	if !rtnl.SameMAC(n.MAC, have.MAC) {
		d.compare("lladdr", n.MAC, have.MAC.String())
	}
	return d.list, nil
}

// undo ignores a forwarding entry of a link that is not a port any more.
func (n *Neigh) undo(ctx context.Context, s *session, v Verb) error {
	err := s.request(ctx, n, v)
	if v == VerbDel && n.FDB && errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return err
}

func (n *Neigh) links() []string { return []string{n.Link} }

// messages returns the requests that add or delete the entry. An add replaces an
// entry that the kernel learnt.
func (n *Neigh) messages(ctx context.Context, s *session, v Verb) ([]nlconn.Message, error) {
	index, err := s.indexOf(ctx, n.In, n.Link)
	if err != nil {
		return nil, err
	}
	mac, err := net.ParseMAC(n.MAC)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", n, ErrInvalid)
	}
	entry := rtnl.Neigh{Link: index, State: unix.NUD_PERMANENT, IP: n.IP, MAC: mac}
	switch {
	case !n.FDB:
		entry.Family = rtnl.Family(n.IP)
	case n.IP.IsValid(): // the VXLAN device's own entry
		entry.Family, entry.Flags = unix.AF_BRIDGE, unix.NTF_SELF
	default: // the bridge's entry for its port
		entry.Family, entry.Flags, entry.State = unix.AF_BRIDGE, unix.NTF_MASTER, unix.NUD_NOARP
	}
	if v == VerbDel {
		if !n.FDB {
			entry.MAC = nil
		}
		return []nlconn.Message{{Kind: unix.RTM_DELNEIGH, Body: entry.Append(nil)}}, nil
	}
	return []nlconn.Message{{Kind: unix.RTM_NEWNEIGH, Flags: unix.NLM_F_CREATE | unix.NLM_F_REPLACE, Body: entry.Append(nil)}}, nil
}

// neighbour reads the permanent neighbour or static forwarding entry with the
// same key as n.
func (s *session) neighbour(ctx context.Context, n *Neigh) (have rtnl.Neigh, there bool, err error) {
	index, c, err := s.linkConn(ctx, n.In, n.Link)
	if err != nil {
		return have, false, err
	}
	if n.FDB {
		have, there, err = c.Forwarding(ctx, index, func(e rtnl.Neigh) bool { return rtnl.SameMAC(n.MAC, e.MAC) && n.IP == e.IP })
	} else {
		have, there, err = c.Neighbour(ctx, index, n.IP)
	}
	return have, there, nlconn.Explain(err, fmt.Sprintf("read %s", n))
}
