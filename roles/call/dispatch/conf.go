package dispatch

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"github.com/cnibox/cnibox/internal/coldjson"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/result"
)

// maxConf bounds standard input, in bytes. A GC list of thousands of attachments fits.
const maxConf = 4 << 20

// header holds the keys of a configuration that dispatch itself reads.
type header struct {
	CNIVersion       string          `json:"cniVersion"`
	Name             string          `json:"name"`
	Type             string          `json:"type"`
	PrevResult       json.RawMessage `json:"prevResult"`
	ValidAttachments json.RawMessage `json:"cni.dev/valid-attachments"`
	Attachments      json.RawMessage `json:"cni.dev/attachments"`
}

// readConf reads all of standard input. For VERSION it does not read a terminal,
// because VERSION needs no configuration.
func readConf(verb roles.Verb, in io.Reader) ([]byte, error) {
	if verb == roles.Version {
		if f, ok := in.(interface{ Stat() (fs.FileInfo, error) }); ok {
			if st, err := f.Stat(); err == nil && st.Mode()&os.ModeCharDevice != 0 {
				return nil, nil
			}
		}
	}
	raw, err := io.ReadAll(io.LimitReader(in, maxConf+1))
	if err != nil {
		return nil, fmt.Errorf("read standard input: %w: %w", ErrIO, err)
	}
	if len(raw) > maxConf {
		return nil, fmt.Errorf("read standard input: %w: more than %d bytes", roles.ErrDecode, maxConf)
	}
	return raw, nil
}

// decodeHeader decodes the keys of a configuration that dispatch needs. A missing
// cniVersion is 0.1.0, as in the spec.
func decodeHeader(raw []byte) (*header, error) {
	var h header
	if err := coldjson.Unmarshal(raw, &h); err != nil {
		return nil, fmt.Errorf("network configuration: %w: %w", roles.ErrDecode, roles.Mismatch(err))
	}
	if h.CNIVersion == "" {
		h.CNIVersion = "0.1.0"
	}
	return &h, nil
}

// check returns an error if the configuration's name is not valid, its version is
// not supported, or the version does not have the verb.
func (h *header) check(verb roles.Verb) error {
	if !roles.IsName(h.Name) {
		reason := "is missing"
		if h.Name != "" {
			reason = fmt.Sprintf(`%q does not begin with a letter or digit, or has characters other than letters, digits, ".", "_" and "-"`, shortened(h.Name))
		}
		return &roles.ConfError{Path: "name", Reason: reason}
	}
	if !slices.Contains(result.Versions(), h.CNIVersion) {
		return fmt.Errorf("%w: config is %q, plugin supports %q", roles.ErrVersion, shortened(h.CNIVersion), result.Versions())
	}
	return checkVerbVersion(verb, h.CNIVersion)
}

// checkVerbVersion returns an error if a version of the spec does not have the verb.
func checkVerbVersion(verb roles.Verb, version string) error {
	least := "0.1.0"
	switch verb {
	case roles.Check:
		least = "0.4.0"
	case roles.GC, roles.Status:
		least = "1.1.0"
	case roles.Add, roles.Del, roles.Version:
	}
	if !result.AtLeast(version, least) {
		return fmt.Errorf("%w: config is %q, but %s requires %s", roles.ErrVersion, version, verb, least)
	}
	return nil
}

// valid decodes GC's list of valid attachments. It returns nil if the configuration
// has no such key. null is an empty list, because libcni sends it for a network without
// attachments whose runtime keeps its lists in maps, as CRI-O does. An entry without a container ID or interface name is an error: GC removes
// every attachment that is not listed, so a misread list would cut off running containers.
func (h *header) valid() ([]roles.AttachmentID, error) {
	var ids []roles.AttachmentID
	for _, list := range []struct {
		key string
		raw json.RawMessage
	}{{"cni.dev/valid-attachments", h.ValidAttachments}, {"cni.dev/attachments", h.Attachments}} {
		if len(list.raw) == 0 {
			continue
		}
		ids = []roles.AttachmentID{}
		if absent(list.raw) { // the other key may have a list
			continue
		}
		if err := json.Unmarshal(list.raw, &ids); err != nil {
			return nil, fmt.Errorf("%s: %w: %w", list.key, roles.ErrDecode, roles.Mismatch(err))
		}
		for i, id := range ids {
			if id.ContainerID == "" || id.IfName == "" {
				return nil, fmt.Errorf("%s[%d]: %w: containerID and ifname are required", list.key, i, roles.ErrDecode)
			}
		}
		return ids, nil
	}
	return ids, nil
}

// absent reports whether a key is missing or null.
func absent(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }
