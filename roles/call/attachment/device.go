package attachment

import (
	"context"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// DeviceAlias is the alias of a host's device while it is in a container: the Label, the
// device's name on the host, which cannot contain "/", and readable text.
func DeviceAlias(key store.Key, name string) string {
	return truncated(Label(key)+" "+name+" "+key.Network+"/"+key.IfName+"/"+key.ContainerID, maxAlias)
}

// OfAlias returns the record of the attachment that a link's alias names, or
// nil.
func OfAlias(tx *store.Tx, alias string) (*store.Attachment, error) {
	info, ok := ParseAlias(alias)
	if !ok {
		return nil, nil
	}
	all, err := tx.Attachments("")
	for i := range all {
		if Label(all[i].Key) == info.Label {
			return &all[i], err
		}
	}
	return nil, err
}

// ReapOne removes one attachment if it is certainly dead and no other process works on
// it.
func ReapOne(ctx context.Context, h *roles.Host, key store.Key) (bool, error) {
	return RemoveIf(ctx, h, key, deadNow)
}
