package tuning

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/roles"
)

// placeholder stands for the interface's name in the name of a sysctl.
const placeholder = "IFNAME"

// Settings are sysctls in the order of the configuration, including duplicates.
type Settings []Setting

// Setting is one sysctl.
type Setting struct {
	// Name is the name as written. Value is the value without surrounding white
	// space.
	Name, Value string
	// wrongType is the JSON type of a value that is not a string.
	wrongType string
}

// UnmarshalJSON reads an object of strings. Values of another type are kept as
// errors, which validate reports with all others.
func (s *Settings) UnmarshalJSON(b []byte) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	open, err := dec.Token()
	if err != nil || open == nil {
		return err
	}
	if open != json.Delim('{') {
		*s = append(*s, Setting{wrongType: jsonType(open)})
		return nil
	}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return err
		}
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return err
		}
		one := Setting{Name: name.(string)}
		if raw[0] == '"' {
			err = json.Unmarshal(raw, &one.Value)
			one.Value = strings.TrimSpace(one.Value)
		} else {
			var v any
			err = json.Unmarshal(raw, &v)
			one.wrongType = jsonType(v)
		}
		if err != nil {
			return err
		}
		*s = append(*s, one)
	}
	return nil
}

// MarshalJSON writes the form that UnmarshalJSON reads.
func (s Settings) MarshalJSON() ([]byte, error) {
	if s == nil {
		return []byte("null"), nil
	}
	out := []byte{'{'}
	for i, one := range s {
		name, err := json.Marshal(one.Name)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(one.Value)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			out = append(out, ',')
		}
		out = append(append(append(out, name...), ':'), value...)
	}
	return append(out, '}'), nil
}

func jsonType(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "bool"
	case string:
		return "string"
	case float64, json.Number:
		return "number"
	case map[string]any:
		return "object"
	}
	return "list"
}

// key is the sysctl's file below /proc/sys, with the interface's name inserted.
// As in sysctl(8), the first dot or slash of a name is the separator; if that
// is a dot, a slash stands for a dot within a part of the name.
func (s Setting) key(ifName string) string {
	key := s.Name
	if i := strings.IndexAny(key, "./"); i >= 0 && key[i] == '.' {
		key = strings.Map(func(r rune) rune {
			switch r {
			case '.':
				return '/'
			case '/':
				return '.'
			}
			return r
		}, key)
	}
	return strings.Replace(key, placeholder, ifName, 1)
}

// jsonPath is the sysctl's JSON path in object.
func (s Setting) jsonPath(object string) string { return fmt.Sprintf("%s[%q]", object, s.Name) }

// validate reports sysctls that are invalid for every interface name.
func (s Settings) validate(f *roles.Faults, object string) {
	for i, one := range s {
		switch key := one.key(placeholder); {
		case one.wrongType != "" && one.Name == "":
			f.Addf(object, "is a JSON %s: use an object of strings", one.wrongType)
		case !strings.HasPrefix(key, "net/") || path.Clean(key) != key || strings.ContainsRune(key, 0):
			f.Addf(one.jsonPath(object), "is not a sysctl below net/: use the form net.ipv4.conf.%s.arp_filter", placeholder)
		case slices.ContainsFunc(s[:i], func(o Setting) bool { return o.key(placeholder) == key }):
			f.Addf(one.jsonPath(object), "is given twice: keep one")
		case one.wrongType != "":
			f.Addf(one.jsonPath(object), "is a JSON %s: use a string such as \"1\"", one.wrongType)
		case len(one.Value) >= maxValue || strings.ContainsAny(one.Value, "\x00\n"):
			f.Addf(one.jsonPath(object), "has a value of more than one line or of more than %d bytes", maxValue-1)
		}
	}
}

// maxValue limits a value's length: the kernel accepts at most one page.
const maxValue = 4096

// mergedSysctls are the configuration's sysctls with those of args added. A
// sysctl of args replaces one with the same file.
func (c *Conf) mergedSysctls(ifName string) (Settings, error) {
	all := slices.Clone(c.Sysctl)
	for _, one := range c.Args.CNI.Sysctl {
		same := func(o Setting) bool { return o.key(ifName) == one.key(ifName) }
		if i := slices.IndexFunc(all, same); i >= 0 {
			all[i] = one
		} else {
			all = append(all, one)
		}
	}
	var f roles.Faults
	for i, one := range all {
		same := func(o Setting) bool { return o.key(ifName) == one.key(ifName) }
		if j := slices.IndexFunc(all[:i], same); j >= 0 {
			f.Addf(one.jsonPath("sysctl"), "is the same sysctl as %q, for interface %q: keep one", all[j].Name, ifName)
		}
	}
	return all, f.Err()
}
