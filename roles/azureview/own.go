package azureview

import (
	"encoding/json"
	"net/netip"

	"github.com/cnibox/cnibox/internal/coldjson"
)

// OwnOf are the node's own addresses when an attachment was made, and the interface into
// the cloud's network that had them, by the attachment's Note. Another role's Note has none.
func OwnOf(raw json.RawMessage) (master string, own []netip.Prefix) {
	var n note
	if coldjson.Unmarshal(raw, &n) != nil {
		return "", nil
	}
	return n.Master, n.Own
}
