package azureview

import (
	"encoding/json"
	"net/netip"

	"github.com/cnibox/cnibox/internal/coldjson"
)

// OwnOf are the node's own addresses when an attachment was made, and its interface
// into the cloud's network that they were on, by the attachment's Note; none by another's.
func OwnOf(raw json.RawMessage) (master string, own []netip.Prefix) {
	var n note
	if coldjson.Unmarshal(raw, &n) != nil {
		return "", nil
	}
	return n.Master, n.Own
}
