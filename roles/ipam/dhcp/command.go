package dhcp

import (
	"context"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// leased is one leased address on the command line.
type leased struct {
	store.Key
	Pod      string `json:"pod,omitempty"`
	Identity string `json:"identity"`
	Address  string `json:"address"`
	Server   string `json:"server"`
	// Renew is the time of the next renewal, Expire the end of the lease. Both are absent
	// if the lease does not expire.
	Renew  time.Time `json:"renew,omitzero"`
	Expire time.Time `json:"expire,omitzero"`
	// Withdrawn means that the lease ended and the address was removed.
	Withdrawn bool `json:"withdrawn,omitempty"`
	// Former means that the lease is of an earlier boot. The address is requested again
	// when the pod returns.
	Former bool `json:"former,omitempty"`
}

// leaseTable is a list of leases that the command line prints.
type leaseTable []leased

// Table returns a row for each lease.
func (t leaseTable) Table() (head []string, rows [][]string) {
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

// at formats a time of a lease; a lease that does not expire has none.
func at(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Format(time.RFC3339)
}

// commands returns the role's commands.
func commands() []roles.CommandVerb {
	return []roles.CommandVerb{{
		Name: "state dhcp",
		Help: "list the addresses that DHCP servers leased", Example: "state dhcp",
		Run: func(ctx context.Context, h *roles.Host, _ map[string]string, _ []string) (any, error) {
			return leases(ctx, h)
		},
	}}
}

// leases reads the recorded leases.
func leases(ctx context.Context, h *roles.Host) (leaseTable, error) {
	out := leaseTable{}
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
