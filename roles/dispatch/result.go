package dispatch

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/cnibox/cnibox/internal/coldjson"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/result"
)

// render is a result's document in the form that a version of the spec has for it.
func render(r *roles.Result, version string) ([]byte, error) {
	v, err := result.As(r, version)
	if err != nil {
		return nil, err
	}
	return marshal(v)
}

// marshal is the one form of every document.
func marshal(v any) ([]byte, error) {
	b, err := coldjson.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	var out bytes.Buffer
	if err := json.Indent(&out, b, "", "    "); err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return append(out.Bytes(), '\n'), nil
}
