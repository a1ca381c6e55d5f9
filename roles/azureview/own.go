package azureview

import (
	"encoding/json"
	"net/netip"

	"github.com/cnibox/cnibox/internal/coldjson"
)

// OwnOf returns the node's own addresses at the time of an attachment, and the
// interface that had them, from the attachment's Note. It returns nothing for a Note
// that another role wrote.
func OwnOf(raw json.RawMessage) (master string, own []netip.Prefix) {
	var n note
	if coldjson.Unmarshal(raw, &n) != nil {
		return "", nil
	}
	return n.Master, n.Own
}
