package routed

import (
	"encoding/json"
	"testing"

	"github.com/cnibox/cnibox/roles/rolestest"
)

// read returns the value that Observe would have stored.
func read(seen []byte) (any, error) {
	o := &observed{}
	if len(seen) == 0 {
		return o, nil
	}
	err := json.Unmarshal(seen, o)
	return o, err
}

// TestGolden runs testdata/*.txtar. Without seen.json no NICs are known.
func TestGolden(t *testing.T) {
	rolestest.Golden{
		Role:     Role(),
		Observed: read,
	}.Run(t)
}
