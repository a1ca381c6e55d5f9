package ranges

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/store/cluster"
)

// register is an object of the registry with the reservations whose names hash to its number. A node changes it by
// compare-and-swap, as a page.
type register struct {
	Revision     uint64         `json:"revision"`
	Reservations []*reservation `json:"reservations"`
}

const (
	registerPrefix = "reservations-"
	registers      = 256
)

// reservation keeps addresses for a pod or virtual machine that moves between nodes. The addresses are in their
// pages, too, so that no node has them in a block.
type reservation struct {
	store.ReservationID
	// ID is what the pages have. A later reservation with the same key has another one.
	ID string `json:"id"`
	// State is written before a page is changed and after: a node that finds another node's unfinished work can
	// finish it, because the addresses are known.
	State     reservationState `json:"state"`
	Addresses []netip.Addr     `json:"addresses"`
	// Holders are the nodes with a container that has the addresses, in the order of their ADDs.
	Holders []*holder `json:"holders,omitempty"`
	// TTL is the time in seconds from the end of the last holder to Until, or store.KeepForever. Until is zero
	// while there are holders.
	TTL   int64     `json:"ttl"`
	Until time.Time `json:"until,omitzero"`
	// Last is the node that changed the holders last. Its agent frees the reservation.
	Last string `json:"last"`
	// IPAMClaimUID is the UID of the IPAMClaim object with the addresses, if there is one.
	IPAMClaimUID string `json:"claimUID,omitempty"`
}

type reservationState string

// The states of a reservation.
const (
	// taking: some of the addresses may belong to others. There are no holders.
	taking reservationState = "taking"
	// reserved: the pages show all addresses as those of the reservation.
	reserved reservationState = "reserved"
	// freeing: there are no holders, and there will be none. The addresses are being removed from the pages.
	freeing reservationState = "freeing"
)

// maxHolders are the nodes that may have the addresses at once: both sides of a live migration.
const maxHolders = 2

// holder is a node with a container that has the addresses.
type holder struct {
	Node    string    `json:"node"`
	Machine string    `json:"machine"`
	Since   time.Time `json:"since"`
	// Quiet means that the node has not announced the addresses, because another node held the reservation first.
	Quiet bool `json:"quiet,omitempty"`
	// Fence is to a holder what Claim is to a block: another node that finds no record of Node sets it, and
	// removes the holder if it stays for the grace period.
	Fence string `json:"fence,omitempty"`
}

// ipamClaimPrefix begins the keys of reservations for IPAMClaim objects.
const ipamClaimPrefix = "ipamclaim:"

// IPAMClaimKey returns the key of the reservation for an IPAMClaim object.
func IPAMClaimKey(namespace, name string) string { return ipamClaimPrefix + namespace + "/" + name }

// self returns this node's entry, or nil.
func (r *reservation) self(k *Keeper) *holder {
	for _, h := range r.Holders {
		if k.isSelf(h) {
			return h
		}
	}
	return nil
}

func (k *Keeper) isSelf(h *holder) bool { return h.Node == k.Node && h.Machine == k.Machine }

// holders returns the names of the nodes that hold the reservation.
func (r *reservation) holders() string {
	var names []string
	for _, h := range r.Holders {
		names = append(names, h.Node)
	}
	return strings.Join(names, " and ")
}

// hold adds this node to the holders.
func (r *reservation) hold(k *Keeper, since time.Time) *holder {
	h := &holder{Node: k.Node, Machine: k.Machine, Since: since.UTC().Truncate(time.Second), Quiet: len(r.Holders) > 0}
	r.Holders, r.Last, r.Until = append(r.Holders, h), k.Node, time.Time{}
	return h
}

// end removes holders. The time to live begins if none is left.
func (r *reservation) end(k *Keeper, which func(*holder) bool) {
	r.Holders, r.Last = slices.DeleteFunc(r.Holders, which), k.Node
	if len(r.Holders) == 0 && r.TTL != store.KeepForever {
		r.Until = k.Host.Now().UTC().Truncate(time.Second).Add(time.Duration(r.TTL) * time.Second)
	}
}

// expired reports whether the addresses may be freed.
func (r *reservation) expired(now time.Time) bool {
	return r.State == freeing || len(r.Holders) == 0 && !r.Until.IsZero() && now.After(r.Until)
}

// registerOf returns the name of the register with a reservation.
func registerOf(id store.ReservationID) string {
	h := fnv.New32a()
	_, _ = fmt.Fprintf(h, "%q %q %q", id.Pool, id.Network, id.Key)
	return registerPrefix + strconv.Itoa(int(h.Sum32()%registers))
}

// isRegister reports whether an object of the registry is a register, not a page.
func isRegister(name string) bool { return strings.HasPrefix(name, registerPrefix) }

// find returns a reservation, or nil.
func (g *register) find(id store.ReservationID) *reservation {
	for _, r := range g.Reservations {
		if r.ReservationID == id {
			return r
		}
	}
	return nil
}

// decodeRegister decodes a register. One that other programs damaged is an error, because it may hide holders.
func decodeRegister(name string, raw []byte) (*register, error) {
	var g register
	if len(raw) > cluster.MaxPage {
		return nil, fmt.Errorf("%s of ranges: %w: larger than %d bytes", name, cluster.ErrInvalid, cluster.MaxPage)
	}
	if err := json.Unmarshal(raw, &g); err != nil {
		return nil, fmt.Errorf("%s of ranges: %w: %w", name, cluster.ErrInvalid, err)
	}
	for i, r := range g.Reservations {
		if r == nil || g.find(r.ReservationID) != r || !r.isValid(name) {
			return nil, fmt.Errorf("%s of ranges: %w: reservations[%d]", name, cluster.ErrInvalid, i)
		}
	}
	return &g, nil
}

func (r *reservation) isValid(in string) bool {
	for _, a := range r.Addresses {
		if !a.IsValid() || a.Is4In6() || a.Zone() != "" {
			return false
		}
	}
	for _, h := range r.Holders {
		if h == nil || cluster.CheckName(h.Node) != nil || r.State != reserved {
			return false
		}
	}
	return r.Network != "" && r.Key != "" && r.ID != "" && registerOf(r.ReservationID) == in && len(r.Addresses) > 0 && len(r.Holders) <= maxHolders &&
		(r.State == taking || r.State == reserved || r.State == freeing)
}

// reserve makes a free address of the page one of a reservation. Otherwise it returns the text of what has the address.
func (p *page) reserve(a netip.Addr, id string, now time.Time) (conflict string) {
	for i := range p.Blocks {
		switch b := &p.Blocks[i]; {
		case !b.interval().Contains(a):
		case b.Reserved == id:
			return ""
		case b.Reserved != "":
			return fmt.Sprintf("%s is of another reservation", a)
		default:
			return fmt.Sprintf("%s is in a block of node %s", a, b.Node)
		}
	}
	p.add(block{First: a, Last: a, Reserved: id, Since: now.UTC().Truncate(time.Second)})
	return ""
}
