package roles

import (
	"fmt"
	"slices"
	"strings"
)

// Args is CNI_ARGS, parsed: "K=V;K2=V2" (CNI spec 1.1.0, section 2).
type Args struct{ pairs []argPair }

type argPair struct{ key, value string }

// ParseArgs parses CNI_ARGS. A trailing semicolon and empty parts are
// tolerated, a value may hold "="; a part without "=" or without a key is an error.
func ParseArgs(s string) (Args, error) {
	var a Args
	for part := range strings.SplitSeq(s, ";") {
		if part == "" {
			continue
		}
		k, v, ok := strings.Cut(part, "=")
		if !ok || k == "" {
			return Args{}, fmt.Errorf("CNI_ARGS: %q is not KEY=VALUE", part)
		}
		a.pairs = append(a.pairs, argPair{k, v})
	}
	return a, nil
}

// Get returns the value of a key, case-sensitive, or "".
func (a Args) Get(key string) string {
	for _, p := range a.pairs {
		if p.key == key {
			return p.value
		}
	}
	return ""
}

// String returns the arguments in the form of CNI_ARGS, which ParseArgs reads.
func (a Args) String() string {
	parts := make([]string, len(a.pairs))
	for i, p := range a.pairs {
		parts[i] = p.key + "=" + p.value
	}
	return strings.Join(parts, ";")
}

// IgnoreUnknown reports whether the runtime allows unknown keys.
func (a Args) IgnoreUnknown() bool {
	v := strings.ToLower(a.Get("IgnoreUnknown"))
	return v == "1" || v == "true"
}

// Unknown lists the keys that are not in known. It returns nil if the runtime set
// IgnoreUnknown.
func (a Args) Unknown(known []string) []string {
	if a.IgnoreUnknown() {
		return nil
	}
	var out []string
	for _, p := range a.pairs {
		if p.key != "IgnoreUnknown" && !slices.Contains(known, p.key) {
			out = append(out, p.key)
		}
	}
	return out
}
