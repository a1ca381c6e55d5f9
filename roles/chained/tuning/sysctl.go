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

// placeholder stands for the interface's name in a setting's.
const placeholder = "IFNAME"

// Settings are sysctls in the order of the configuration, also those that are
// given twice.
type Settings []Setting

// Setting is one sysctl.
type Setting struct {
	// Name is as it was written, Value without white space around it.
	Name, Value string
	// wrong is the JSON type of a value that is no text.
	wrong string
}

// UnmarshalJSON reads an object of texts. Values of another type are faults that
// validate tells, with all others.
func (s *Settings) UnmarshalJSON(b []byte) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	open, err := dec.Token()
	if err != nil || open == nil {
		return err
	}
	if open != json.Delim('{') {
		*s = append(*s, Setting{wrong: jsonType(open)})
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
			one.wrong = jsonType(v)
		}
		if err != nil {
			return err
		}
		*s = append(*s, one)
	}
	return nil
}

// MarshalJSON writes what UnmarshalJSON reads.
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

// key is the setting's file below /proc/sys, with the interface's name in place.
// The separators of a name are dots or slashes, whichever comes first, and the
// other one stands for itself or a dot of a name, as sysctl(8) has it.
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

// at is the setting's JSON path.
func (s Setting) at(object string) string { return fmt.Sprintf("%s[%q]", object, s.Name) }

// validate reports settings that no interface's name makes good.
func (s Settings) validate(f *roles.Faults, object string) {
	for i, one := range s {
		switch key := one.key(placeholder); {
		case one.wrong != "" && one.Name == "":
			f.Addf(object, "is a JSON %s, want an object of texts", one.wrong)
		case !strings.HasPrefix(key, "net/") || path.Clean(key) != key || strings.ContainsRune(key, 0):
			f.Addf(one.at(object), "is no setting below net/: use the form net.ipv4.conf.%s.arp_filter", placeholder)
		case slices.ContainsFunc(s[:i], func(o Setting) bool { return o.key(placeholder) == key }):
			f.Addf(one.at(object), "is given twice: keep one")
		case one.wrong != "":
			f.Addf(one.at(object), "is a JSON %s, want a text such as \"1\"", one.wrong)
		case len(one.Value) >= maxValue || strings.ContainsAny(one.Value, "\x00\n"):
			f.Addf(one.at(object), "has a value of more than one line or %d bytes", maxValue-1)
		}
	}
}

// maxValue bounds a setting's value: the kernel takes no more than a page.
const maxValue = 4096

// settings are those of the configuration with those of args in place of, or
// behind them, by their files.
func (c *Conf) settings(ifName string) (Settings, error) {
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
			f.Addf(one.at("sysctl"), "is the same setting as %q, for interface %q: keep one", all[j].Name, ifName)
		}
	}
	return all, f.Err()
}
