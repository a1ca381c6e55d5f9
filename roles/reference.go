package roles

import (
	"context"
	"log/slog"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/store"
)

// ReferencePlugins finds and removes what the reference plugins made on this node for
// attachments without a record.
type ReferencePlugins interface {
	// IsAttached reports whether the reference plugin of an interface role made an
	// attachment. hostLink is the name of the host's end that this program would give it.
	// hostEnd is the name that it has, if the interface is a veth pair.
	IsAttached(ctx context.Context, h *Host, req *Request, ns *netops.Namespace, hostLink string) (hostEnd string, is bool, err error)
	// CheckInterface reduces the wanted objects of CHECK to those that the reference
	// plugin of an interface role makes. With masquerades it lists the addresses that the
	// reference plugin does not masquerade.
	CheckInterface(ctx context.Context, h *Host, req *Request, spec *netops.Spec, masquerades bool) ([]netops.Difference, error)
	// RemoveInterface removes the interface that the reference plugin of an interface role
	// made for an attachment, and, with masquerades, its rules. own contains the objects
	// that the role itself would make.
	RemoveInterface(ctx context.Context, h *Host, req *Request, ns *netops.Namespace, own netops.Spec, masquerades bool) error
	// CollectMasquerade removes the masquerade rules of a network's containers that are
	// not valid.
	CollectMasquerade(ctx context.Context, h *Host, req *Request) error
	// Departed lists the attachments of a network that have address files of the
	// reference's host-local and are not valid, with those of their addresses that no
	// attachment has now.
	Departed(ctx context.Context, h *Host, network string, valid []AttachmentID) ([]netops.ReferencePluginAttachment, error)
	// Mirror returns what removes the address files of the reference's host-local together
	// with the leases that a transaction releases.
	Mirror(log *slog.Logger) store.Mirror
}
