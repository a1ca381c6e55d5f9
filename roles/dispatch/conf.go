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
	"github.com/cnibox/cnibox/roles/result"
)

// maxConf bounds standard input. Lists of thousands of attachments fit.
const maxConf = 4 << 20

// header is what dispatch itself reads of a configuration.
type header struct {
	CNIVersion       string          `json:"cniVersion"`
	Name             string          `json:"name"`
	Type             string          `json:"type"`
	PrevResult       json.RawMessage `json:"prevResult"`
	ValidAttachments json.RawMessage `json:"cni.dev/valid-attachments"`
	Attachments      json.RawMessage `json:"cni.dev/attachments"`
}

// readConf reads standard input whole. VERSION does not wait for a person to
// type it.
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

// decodeHeader decodes a configuration as far as dispatch needs it.
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

// check refuses a configuration without a usable name, or whose version is not
// spoken or lacks the verb.
func (h *header) check(verb roles.Verb) error {
	if !roles.IsName(h.Name) {
		reason := "is missing"
		if h.Name != "" {
			reason = fmt.Sprintf(`%q does not begin with a letter or digit, or has other characters than those, ".", "_" and "-"`, shortened(h.Name))
		}
		return &roles.ConfError{Path: "name", Reason: reason}
	}
	if !slices.Contains(result.Versions(), h.CNIVersion) {
		return fmt.Errorf("%w: config is %q, plugin supports %q", roles.ErrVersion, shortened(h.CNIVersion), result.Versions())
	}
	return checkVerbVersion(verb, h.CNIVersion)
}

// checkVerbVersion refuses a verb that a version of the spec does not have.
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
		return fmt.Errorf("%w: config is %q, which has no %s: it came with %s", roles.ErrVersion, version, verb, least)
	}
	return nil
}

// valid decodes GC's list; nil when the runtime sent none. Entries that name
// nothing are refused: a list that is misread costs living containers.
func (h *header) valid() ([]roles.AttachmentID, error) {
	for _, list := range []struct {
		key string
		raw json.RawMessage
	}{{"cni.dev/valid-attachments", h.ValidAttachments}, {"cni.dev/attachments", h.Attachments}} {
		if absent(list.raw) {
			continue
		}
		var ids []roles.AttachmentID // "[]" is decoded into a list that is not nil
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
	return nil, nil
}

// absent tells whether a key is missing or null.
func absent(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }
