// Package redact removes secrets from texts that people will read or send to others.
package redact

import (
	"bytes"
	"encoding/json"
	"strings"
)

// Placeholder replaces a secret.
const Placeholder = "REDACTED"

// maxDepth bounds JSON in strings of JSON.
const maxDepth = 4

// words returns what the names of secrets contain, without case, "-", "_" and ".".
func words() []string {
	return []string{
		"password", "passwd", "passphrase", "secret", "token", "psk", "credential", "bearer", "authorization", "cookie",
		"privatekey", "presharedkey", "sharedkey", "apikey", "accesskey", "authkey", "accountkey", "clientkey", "keydata",
	}
}

// mentions reports whether a text has one of the words.
func mentions(text []byte) bool {
	plain := make([]byte, 0, len(text))
	for _, c := range text {
		switch {
		case c == '-' || c == '_' || c == '.':
		case 'A' <= c && c <= 'Z':
			plain = append(plain, c+'a'-'A')
		default:
			plain = append(plain, c)
		}
	}
	for _, w := range words() {
		if bytes.Contains(plain, []byte(w)) {
			return true
		}
	}
	return false
}

// JSON replaces the values of secret members, variables and flags, also in nested objects and in strings that are
// JSON themselves, and the passwords of URLs. A text without secrets is returned as it is. One that cannot be decoded is replaced
// as a whole if it mentions a secret.
func JSON(text []byte) []byte {
	// Most texts have no secrets, and decoding takes a hundred times as long. An escaped name ("\u0070sk") is
	// recognized after decoding only.
	if !mentions(text) && !bytes.Contains(text, []byte(`\u`)) && !bytes.Contains(text, []byte("@")) {
		return text
	}
	out, ok := redacted(text, maxDepth)
	if !ok {
		return []byte(Placeholder)
	}
	return out
}

func redacted(raw []byte, depth int) ([]byte, bool) {
	return Rewrite(raw, func(name string, v any) any {
		if mentions([]byte(name)) {
			return Placeholder
		}
		switch v := v.(type) {
		case string:
			return text(v, depth)
		case map[string]any: // {"name": "DB_PASSWORD", "value": "x"}
			if s, ok := v["name"].(string); ok && v["value"] != nil && mentions([]byte(s)) {
				v["value"] = Placeholder
			}
		case []any: // ["--token", "x"]
			for i := range len(v) - 1 {
				if s, ok := v[i].(string); ok && strings.HasPrefix(s, "-") && !strings.Contains(s, "=") && mentions([]byte(s)) {
					v[i+1] = Placeholder
				}
			}
		}
		return v
	})
}

// Rewrite replaces the values of a JSON text by those that replace returns for the name of the member and the value. It
// returns false if the text is not JSON.
func Rewrite(text []byte, replace func(name string, v any) any) ([]byte, bool) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil || d.More() {
		return nil, false
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if e.Encode(walk("", v, replace)) != nil {
		return nil, false
	}
	return bytes.TrimSpace(out.Bytes()), true
}

func walk(name string, v any, replace func(string, any) any) any {
	v = replace(name, v)
	switch v := v.(type) {
	case map[string]any:
		for name, one := range v {
			v[name] = walk(name, one, replace)
		}
	case []any:
		for i := range v {
			v[i] = walk(name, v[i], replace)
		}
	}
	return v
}

// text redacts a string, which may be JSON, "K=V;K2=V2" or a URL.
func text(s string, depth int) string {
	if t := strings.TrimSpace(s); strings.HasPrefix(t, "{") || strings.HasPrefix(t, "[") {
		if depth == 0 {
			return Placeholder
		}
		if out, ok := redacted([]byte(s), depth-1); ok {
			return string(out)
		}
	}
	return Args(s)
}

// Args redacts "K=V;K2=V2", the form of CNI_ARGS, and URLs in it.
func Args(s string) string {
	pairs := strings.Split(s, ";")
	for i, kv := range pairs {
		// If another separator is used, kv has several pairs. All of them are redacted if one is secret.
		if last := strings.LastIndexByte(kv, '='); last >= 0 && mentions([]byte(kv[:last])) {
			k, _, _ := strings.Cut(kv, "=")
			pairs[i] = k + "=" + Placeholder
		}
	}
	return URLs(strings.Join(pairs, ";"))
}

// URLs redacts the users and passwords of the URLs in a text.
func URLs(s string) string {
	var out strings.Builder
	for {
		scheme, rest, ok := strings.Cut(s, "://")
		out.WriteString(scheme)
		if !ok {
			return out.String()
		}
		out.WriteString("://")
		end := strings.IndexAny(rest, "/?# ")
		if end < 0 {
			end = len(rest)
		}
		if at := strings.LastIndexByte(rest[:end], '@'); at >= 0 {
			out.WriteString(Placeholder)
			rest = rest[at:]
		}
		s = rest
	}
}
