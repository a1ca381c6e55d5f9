package record

import (
	"context"
	"strings"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// DeviceAlias labels a device of the host while it is in a container: the Label,
// the device's name on the host, which has no "/" in it, and text for people.
func DeviceAlias(key store.Key, name string) string {
	s := Label(key) + " " + name + " " + key.Network + "/" + key.IfName + "/" + key.ContainerID
	if len(s) > maxAlias {
		s = s[:maxAlias]
	}
	return strings.ToValidUTF8(s, "")
}

// AttachmentOfAlias is the record of the attachment that a link's alias names, or nil.
func AttachmentOfAlias(tx *store.Tx, alias string) (*store.Attachment, error) {
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

// ReapOne removes one attachment if its container is certainly gone and no
// other process works on it.
func ReapOne(ctx context.Context, h *roles.Host, key store.Key) (bool, error) {
	return RemoveIf(ctx, h, key, deadNow)
}
