package metadata

import (
	"context"
	"fmt"
	"net/http"
	"strings"
)

// macsPath is a path of AWS's metadata API, which other clouds copied: a tree of keys with text
// values, which requires a session token.
const macsPath = "/latest/meta-data/network/interfaces/macs/"

// keys requests the keys of one interface. err is the first error.
type keys struct {
	a    *api
	path string
	err  error
}

// text returns one value, or "" if the cloud does not have it (404).
func (k *keys) text(ctx context.Context, key string) string {
	if k.err != nil {
		return ""
	}
	var s string
	s, k.err = k.a.text(ctx, k.path+key)
	return s
}

// list returns a list of values, which are on lines (AWS) or in brackets (Alibaba), with or without
// quotes.
func (k *keys) list(ctx context.Context, key string) []string {
	return split(k.text(ctx, key))
}

func split(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return strings.ContainsRune("[]\", \t\r\n", r) })
}

// macs returns the MACs of the interfaces. Only valid MACs are accepted, because they become parts
// of paths.
func (a *api) macs(ctx context.Context) ([]string, error) {
	b, err := a.get(ctx, macsPath)
	if err != nil {
		return nil, err // the key is missing: this is another cloud
	}
	lines := strings.Fields(string(b))
	if len(lines) > maxInterfaces {
		return nil, fmt.Errorf("%w: %d interfaces, more than %d", ErrInvalid, len(lines), maxInterfaces)
	}
	for i, l := range lines {
		lines[i] = strings.TrimSuffix(l, "/")
		if _, err := parseMAC(lines[i]); err != nil || lines[i] == anyMAC {
			return nil, fmt.Errorf("%s%s: %w: %.50q is not a MAC", a.base, macsPath, ErrInvalid, l)
		}
	}
	return lines, nil
}

// interfaces requests all interfaces. read requests the keys of one.
func (a *api) interfaces(ctx context.Context, read func(*keys, *nic)) ([]nic, error) {
	macs, err := a.macs(ctx)
	if err != nil {
		return nil, err
	}
	primary, err := a.text(ctx, "/latest/meta-data/mac")
	if err != nil {
		return nil, err
	}
	nics := make([]nic, 0, len(macs))
	for _, mac := range macs {
		k := &keys{a: a, path: macsPath + mac + "/"}
		n := nic{mac: mac, device: unnumbered, primary: mac == primary}
		read(k, &n)
		if k.err != nil {
			return nil, k.err
		}
		nics = append(nics, n)
	}
	return nics, nil
}

// token returns a login with a session token that is valid for a minute.
func token(ttl, header string) func(context.Context, *api) error {
	return func(ctx context.Context, a *api) error {
		a.header = headerOf(http.CanonicalHeaderKey(ttl), "60")
		b, err := a.send(ctx, http.MethodPut, "/latest/api/token")
		if err != nil {
			return fmt.Errorf("get a session token: %w", err)
		}
		t := strings.TrimSpace(string(b))
		if t == "" || len(t) > 4096 || strings.ContainsFunc(t, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return fmt.Errorf("get a session token: %w: no token", ErrInvalid)
		}
		a.header = headerOf(http.CanonicalHeaderKey(header), t)
		return nil
	}
}
