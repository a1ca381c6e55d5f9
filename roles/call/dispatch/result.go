package dispatch

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/cnibox/cnibox/internal/coldjson"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/result"
)

// render encodes a result as a version of the spec defines it.
func render(r *roles.Result, version string) ([]byte, error) {
	v, err := result.As(r, version)
	if err != nil {
		return nil, err
	}
	return marshal(v)
}

// marshal encodes v as JSON with an indentation of four spaces and a final line break.
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
