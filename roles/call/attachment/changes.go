package attachment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/cnibox/cnibox/internal/coldjson"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// DecodeChanges decodes stored changes. Empty input is not an error.
func DecodeChanges(raw json.RawMessage) ([]netops.Change, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	var c []netops.Change
	if err := coldjson.Unmarshal(raw, &c); err != nil {
		return nil, fmt.Errorf("stored changes: %w: %w", roles.ErrDecode, err)
	}
	return c, nil
}

// Changes returns the changes of all parts of an attachment, and joins the errors.
func Changes(a *store.Attachment) (all []netops.Change, err error) {
	var errs []error
	for _, part := range a.Parts {
		changes, err := DecodeChanges(part.Changes)
		all, errs = append(all, changes...), append(errs, err)
	}
	return all, errors.Join(errs...)
}

// Inverses returns changes whose inverses delete the objects.
func Inverses(made []netops.Object) []netops.Change {
	out := make([]netops.Change, len(made))
	for i, o := range made {
		out[i] = netops.Change{
			Do:   netops.Step{Verb: netops.VerbAdd, Object: o},
			Undo: &netops.Step{Verb: netops.VerbDel, Object: o},
		}
	}
	return out
}

// Verify compares the recorded objects that DEL removes. Of a link only its presence
// is compared, because a chained plugin may have changed the rest. A rebuilt record may not
// have the namespace; then ns is nil, and the objects in it are not compared.
func Verify(ctx context.Context, h *roles.Host, r *store.Attachment, ns *netops.Namespace) ([]netops.Difference, error) {
	changes, err := Changes(r)
	if err != nil {
		return nil, err
	}
	var spec netops.Spec
	for _, c := range changes {
		if c.Undo == nil || c.Undo.Verb != netops.VerbDel || ns == nil && c.Undo.Object.Where() != netops.Host {
			continue
		}
		switch c.Undo.Object.(type) {
		case *netops.Link, *netops.Element, *netops.Rule, *netops.Addr, *netops.Route:
			spec.Add(c.Undo.Object)
		}
	}
	return h.Net.Verify(ctx, spec, ns)
}
