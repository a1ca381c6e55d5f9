package roles

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/cnibox/cnibox/internal/coldjson"
)

// NetConf holds the keys that every network configuration may have. A role's
// Conf embeds it.
type NetConf struct {
	// CNIVersion is the version of the spec; "0.1.0" when it is absent.
	CNIVersion string `json:"cniVersion,omitempty"`
	// Name is the network's name.
	Name string `json:"name,omitempty"`
	// Type is the plugin's name.
	Type string `json:"type,omitempty"`
	// Capabilities are the runtimeConfig keys that the runtime may fill in.
	Capabilities map[string]bool `json:"capabilities,omitempty"`
	// IPAM names the IPAM plugin; that plugin reads its other keys.
	IPAM IPAMConf `json:"ipam,omitzero"`
	// DNS replaces the DNS settings of the IPAM plugin's result when any field is set.
	DNS types.DNS `json:"dns,omitzero"`
	// PolicyLabels are the keys of a pod's annotations that are its labels for network policies in files. Who makes the pod chooses its
	// annotations, so the pod can meet each selector of these keys.
	PolicyLabels []string `json:"policyLabels,omitempty"`
	// PrevResult is the previous plugin's result. The runtime sets it.
	PrevResult json.RawMessage `json:"prevResult,omitempty"`
	// ValidAttachments is GC's list of valid attachments. The runtime sets it.
	ValidAttachments json.RawMessage `json:"cni.dev/valid-attachments,omitempty"`
	// Attachments is the same list under its name in early texts of spec 1.1.0.
	Attachments json.RawMessage `json:"cni.dev/attachments,omitempty"`
}

// IPAMConf is what an interface role knows of its IPAM plugin.
type IPAMConf struct {
	// Type is the IPAM plugin's CNI type; empty means layer 2 only.
	Type string `json:"type,omitempty"`
}

// Common returns the keys that every configuration has.
func (c *NetConf) Common() *NetConf { return c }

// Conf is a role's configuration: a pointer to a struct that embeds NetConf. It may
// have a method SetDefaults.
type Conf interface {
	// Validate reports every fault with its JSON path.
	Validate() error
	// Common is implemented by NetConf.
	Common() *NetConf
}

// ReadConf decodes a configuration, sets its defaults and validates it. Every fault is
// reported at once: values of the wrong type do not prevent the validation of the others.
func ReadConf(raw []byte, into Conf) error {
	err := DecodeConf(raw, into)
	switch {
	case err == nil:
		err = into.Validate()
	case errors.Is(err, ErrConf):
		err = JoinFaults(err, into.Validate())
	}
	return err
}

// DecodeConf decodes a configuration and sets its defaults. After the error ErrConf, it
// contains the values that could be decoded.
func DecodeConf(raw []byte, into Conf) error {
	err := Decode(raw, into)
	if d, ok := into.(interface{ SetDefaults() }); ok {
		d.SetDefaults()
	}
	return err
}

// maxMismatches bounds how many values of the wrong type are reported at once.
const maxMismatches = 32

// Decode decodes a configuration into a role's Conf. Unknown keys are
// tolerated; every value of the wrong type is a ConfError with its path.
func Decode(conf []byte, into any) error {
	err := coldjson.Unmarshal(conf, into)
	if err == nil {
		return nil
	}
	var te *json.UnmarshalTypeError
	if !errors.As(err, &te) {
		return fmt.Errorf("network configuration: %w: %w", ErrDecode, err)
	}
	var f Faults
	for left := conf; errors.As(err, &te) && len(f.list) < maxMismatches; {
		path := strings.TrimPrefix(te.Field, "NetConf.") // encoding/json names embedded structs too
		f.Addf(cmp.Or(path, "(top level)"), "%s", mismatchReason(te))
		if left = without(left, strings.Split(path, ".")); left == nil {
			break
		}
		te, err = nil, json.Unmarshal(left, reflect.New(reflect.TypeOf(into).Elem()).Interface())
	}
	return f.Err()
}

// without returns a JSON document without the value at a path. If the path leads into a
// list, it removes the whole list. Keys may differ in case, as for encoding/json. It
// returns nil if the value is absent.
func without(doc []byte, path []string) []byte {
	var members map[string]json.RawMessage
	if json.Unmarshal(doc, &members) != nil {
		return nil
	}
	found := false
	for key, value := range members {
		if !strings.EqualFold(key, path[0]) {
			continue
		}
		found = true
		var inner []byte
		if len(path) > 1 {
			inner = without(value, path[1:])
		}
		if inner != nil {
			members[key] = inner
		} else {
			delete(members, key)
		}
	}
	if !found {
		return nil
	}
	out, err := json.Marshal(members)
	if err != nil {
		return nil
	}
	return out
}

// Mismatch rewrites an error of encoding/json for the author of the document: it
// reports a value of the wrong type in JSON's terms. Other errors are unchanged.
func Mismatch(err error) error {
	var te *json.UnmarshalTypeError
	if !errors.As(err, &te) {
		return err
	}
	if te.Field == "" {
		return errors.New(mismatchReason(te))
	}
	return fmt.Errorf("%s: %s", te.Field, mismatchReason(te))
}

func mismatchReason(te *json.UnmarshalTypeError) string {
	return fmt.Sprintf("is a JSON %s, want %s", te.Value, jsonType(te.Type))
}

// jsonType names a Go type in JSON's terms; string and bool keep their names.
func jsonType(t reflect.Type) string {
	if t == reflect.TypeFor[StringList]() {
		return StringListType
	}
	switch t.Kind() {
	case reflect.Pointer:
		return jsonType(t.Elem())
	case reflect.Struct, reflect.Map:
		return "object"
	case reflect.Slice, reflect.Array:
		if elem := t.Elem(); elem.PkgPath() != "" || elem.Kind() == reflect.Pointer {
			return "list"
		}
	case reflect.Int, reflect.Int64:
		return "whole number"
	case reflect.Uint64:
		return "whole number, 0 or more"
	case reflect.Uint8, reflect.Uint16, reflect.Uint32:
		return fmt.Sprintf("whole number from 0 to %d", uint64(1)<<t.Bits()-1)
	}
	return t.String()
}
