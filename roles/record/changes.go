package record

import (
	"encoding/json"
	"fmt"

	"github.com/cnibox/cnibox/internal/coldjson"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
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
