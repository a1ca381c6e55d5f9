package dhcp

import (
	"context"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// leased is one address as the command line tells it.
type leased struct {
	store.Key
	Pod      string `json:"pod,omitempty"`
	Identity string `json:"identity"`
	Address  string `json:"address"`
	Server   string `json:"server"`
	// Renew is when the server is asked next, Expire when the lease ends; absent
	// for a lease without end.
	Renew  time.Time `json:"renew,omitzero"`
	Expire time.Time `json:"expire,omitzero"`
	// Withdrawn: the lease ended and the address was taken off.
	Withdrawn bool `json:"withdrawn,omitempty"`
	// Former: the lease is of an earlier boot; the address is asked for again
	// when the pod comes back.
	Former bool `json:"former,omitempty"`
}

// table is how the command line shows leases.
type table []leased

// Table tells what a lease is doing, in words, beside whose it is.
func (t table) Table() (head []string, rows [][]string) {
	for _, l := range t {
		state := "leased"
		switch {
		case l.Former:
			state = "former"
		case l.Withdrawn:
			state = "withdrawn"
		}
		rows = append(rows, []string{l.Address, l.Network, l.ContainerID, l.IfName, l.Server, at(l.Renew), at(l.Expire), state, l.Identity})
	}
	return []string{"ADDRESS", "NETWORK", "CONTAINER", "IFNAME", "SERVER", "RENEW", "EXPIRE", "STATE", "IDENTITY"}, rows
}

// at is a time of a lease; one without end has none.
func at(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Format(time.RFC3339)
}

// commands are the role's own on the command line.
func commands() []roles.CommandVerb {
	return []roles.CommandVerb{{
		Name: "state dhcp",
		Help: "list the addresses that DHCP servers leased",
		Run: func(ctx context.Context, h *roles.Host, _ map[string]string, _ []string) (any, error) {
			return leases(ctx, h)
		},
	}}
}

// leases reads what is on record.
func leases(ctx context.Context, h *roles.Host) (table, error) {
	out := table{}
	err := h.Store.KeepView(ctx, func(tx *store.KeepTx) error {
		all, err := tx.DHCPLeases("")
		for _, l := range all {
			for _, g := range l.Grants {
				out = append(out, leased{
					Key: l.Owner, Pod: l.Pod, Identity: l.Identity, Address: g.Address.String(), Server: g.Server,
					Renew: g.Renew, Expire: g.Expire, Withdrawn: g.Withdrawn, Former: l.BootID != h.Store.BootID(),
				})
			}
		}
		return err
	})
	return out, err
}
