// Package redact removes secrets from texts that people will read or send to others.
package redact

import (
	"bytes"
	"encoding/json"
	"net/url"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/internal/yaml"
)

// Placeholder replaces a secret.
const Placeholder = "REDACTED"

// maxDepth bounds JSON in strings of JSON.
const maxDepth = 4

// words returns what the names of secrets contain, without case, "-", "_" and ".".
func words() []string {
	return []string{
		"password", "passwd", "passphrase", "pwd", "secret", "token", "psk", "credential", "bearer", "authorization", "cookie",
		"privatekey", "presharedkey", "sharedkey", "apikey", "accesskey", "authkey", "accountkey", "clientkey", "keydata",
	}
}

// short returns what names a secret if it is a whole word of a name: "pass" is also in passthru, and "key" in keyring.
func short() []string {
	return []string{"pass", "auth", "key", "sig", "signature", "creds"}
}

// marks returns how words begin that are secrets under any name: JSON web tokens, and keys of AWS, GitHub and Slack.
func marks() []string {
	return []string{"eyJ", "AKIA", "ASIA", "ghp_", "gho_", "ghs_", "github_pat_", "xoxb-", "xoxp-"}
}

// minSecret is the length from which a word with a mark is a secret.
const minSecret = 16

// plain returns a text without case, "-", "_" and ".".
func plain(text []byte) []byte {
	out := make([]byte, 0, len(text))
	for _, c := range text {
		switch {
		case c == '-' || c == '_' || c == '.':
		case 'A' <= c && c <= 'Z':
			out = append(out, c+'a'-'A')
		default:
			out = append(out, c)
		}
	}
	return out
}

func containsAny(text []byte, words []string) bool {
	return slices.ContainsFunc(words, func(w string) bool { return bytes.Contains(text, []byte(w)) })
}

// isSecret reports whether a name is one of a secret: it contains a word, or a short word is one of its words, as in tlsKey and X-Sig.
func isSecret(name string) bool {
	if containsAny(plain([]byte(name)), words()) {
		return true
	}
	start := 0
	for i := 1; i <= len(name); i++ {
		if i < len(name) && !isBoundary(name, i) {
			continue
		}
		if slices.Contains(short(), strings.ToLower(name[start:i])) {
			return true
		}
		start = i
	}
	return false
}

// isBoundary reports whether a word of a name begins or ends at i: beside what is no letter, and in tlsKey and TLSKey at the K.
func isBoundary(name string, i int) bool {
	isUpper := func(c byte) bool { return 'A' <= c && c <= 'Z' }
	isLower := func(c byte) bool { return 'a' <= c && c <= 'z' }
	isLetter := func(c byte) bool { return isUpper(c) || isLower(c) }
	before, c := name[i-1], name[i]
	return !isLetter(before) || !isLetter(c) || isUpper(c) && (isLower(before) || i+1 < len(name) && isLower(name[i+1]))
}

// JSON replaces the values of secret members, variables, headers and flags, also in nested objects and in strings that are
// JSON or YAML themselves, what has the form of a secret, and the passwords and signatures of URLs. A text without secrets is
// returned as it is. One that cannot be decoded is replaced as a whole if it may have a secret.
func JSON(text []byte) []byte {
	// Most texts have no secrets, and decoding takes a hundred times as long.
	if !suspect(text) {
		return text
	}
	out, ok := redacted(text, maxDepth)
	if !ok {
		return []byte(Placeholder)
	}
	return out
}

// suspect reports whether a text may have a secret. An escaped name ("\u0070sk") is recognized after decoding only.
func suspect(text []byte) bool {
	simple := plain(text)
	return containsAny(simple, words()) || containsAny(simple, short()) || containsAny(simple, []string{`\u`, "@", "basic "}) || containsAny(text, marks())
}

func redacted(raw []byte, depth int) ([]byte, bool) {
	return Rewrite(raw, func(name string, v any) any {
		if isSecret(name) {
			return Placeholder
		}
		switch v := v.(type) {
		case string:
			return text(v, depth)
		case map[string]any: // {"name": "DB_PASSWORD", "value": "x"}
			for _, member := range []string{"name", "key", "header"} {
				if s, ok := v[member].(string); ok && v["value"] != nil && isSecret(s) {
					return map[string]any{member: s, "value": Placeholder}
				}
			}
		case []any: // ["--token", "x"] and ["Authorization", "x"]
			for i := range len(v) - 1 {
				s, ok := v[i].(string)
				if ok && !strings.Contains(s, "=") && isSecret(s) && (strings.HasPrefix(s, "-") || len(v) == 2) {
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

// text redacts a string, which may be JSON, YAML, lines of headers, "K=V;K2=V2" or a URL.
func text(s string, depth int) string {
	if t := strings.TrimSpace(s); t != "" && (t[0] == '{' || t[0] == '[' || strings.Contains(t, "\n")) && suspect([]byte(t)) {
		if out, ok := document(t, depth); ok {
			return out
		}
	}
	var out strings.Builder
	for line := range strings.Lines(s) {
		end := strings.TrimRight(line, "\r\n")
		if name, value, ok := strings.Cut(end, ":"); ok && value != "" && !strings.HasPrefix(value, "//") && isSecret(name) {
			end = name + ": " + Placeholder
		}
		out.WriteString(pairs(end))
		out.WriteString(line[len(strings.TrimRight(line, "\r\n")):])
	}
	return Text(out.String())
}

// document redacts JSON or YAML with members or items, and returns JSON. It returns false for other texts.
func document(s string, depth int) (string, bool) {
	if depth == 0 {
		return Placeholder, true
	}
	if out, ok := redacted([]byte(s), depth-1); ok {
		return string(out), true
	}
	raw, err := yaml.ToJSON([]byte(s))
	if err != nil {
		return Placeholder, s[0] == '{' || s[0] == '['
	}
	if raw[0] != '{' && raw[0] != '[' {
		return "", false
	}
	out, ok := redacted(raw, depth-1)
	return string(out), ok
}

// Args redacts "K=V;K2=V2", the form of CNI_ARGS, and in it what Text redacts.
func Args(s string) string {
	return Text(pairs(s))
}

func pairs(s string) string {
	all := strings.Split(s, ";")
	for i, kv := range all {
		// With another separator than ";" kv has several pairs. If one of their names is secret, all values are replaced.
		// Text redacts the parameters of URLs.
		names := outside(kv)
		if last := strings.LastIndexByte(names, '='); last >= 0 && isSecret(names[:last]) {
			k, _, _ := strings.Cut(kv, "=")
			all[i] = k + "=" + Placeholder
		}
	}
	return strings.Join(all, ";")
}

// Text redacts a text for people: what has the form of a secret, and in URLs users, passwords and the values of secret parameters.
func Text(s string) string { return shapes(queries(users(s))) }

// users redacts the users and passwords of URLs, also of a URL within another one.
func users(s string) string {
	var out strings.Builder
	for {
		scheme, rest, ok := strings.Cut(s, "://")
		out.WriteString(scheme)
		if !ok {
			return out.String()
		}
		out.WriteString("://")
		end := strings.IndexAny(rest, "/?# \t\r\n")
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

// queries redacts the secret parameters of URLs.
func queries(s string) string {
	return replaceURLs(s, func(address string) string { return "://" + parameters(address) })
}

// outside returns a text without what follows the schemes of its URLs.
func outside(s string) string { return replaceURLs(s, func(string) string { return "" }) }

// replaceURLs replaces "://" and the rest of each URL by what replace returns for that rest.
func replaceURLs(s string, replace func(address string) string) string {
	var out strings.Builder
	for {
		before, rest, ok := strings.Cut(s, "://")
		out.WriteString(before)
		if !ok {
			return out.String()
		}
		end := strings.IndexAny(rest, " \t\r\n,\"'")
		if end < 0 {
			end = len(rest)
		}
		out.WriteString(replace(rest[:end]))
		s = rest[end:]
	}
}

// parameters redacts the secret parameters of a URL without its scheme: its query, and its fragment if that has parameters.
func parameters(address string) string {
	start := strings.IndexAny(address, "?#")
	if start < 0 {
		return address
	}
	var out strings.Builder
	out.WriteString(address[:start])
	for start < len(address) {
		end := strings.IndexAny(address[start+1:], "?#&;")
		if end < 0 {
			end = len(address)
		} else {
			end += start + 1
		}
		name, _, ok := strings.Cut(address[start:end], "=")
		if decoded, err := url.QueryUnescape(name[1:]); ok && (err != nil || isSecret(decoded)) {
			out.WriteString(name + "=" + Placeholder)
		} else {
			out.WriteString(address[start:end])
		}
		start = end
	}
	return out.String()
}

// shapes redacts what is a secret by its form: a private key in PEM with what follows, a word with a mark, and what follows "Basic" or "Bearer".
func shapes(s string) string {
	if at := strings.Index(s, "-----BEGIN "); at >= 0 && strings.Contains(s[at:], "PRIVATE KEY") {
		s = s[:at] + Placeholder
	}
	var out strings.Builder
	before := ""
	for len(s) > 0 {
		end := strings.IndexAny(s, " \t\r\n\"',;=")
		if end < 0 {
			end = len(s)
		}
		word := s[:end]
		if len(word) >= minSecret && hasMark(word) || len(word) > 0 && (before == "Basic" || before == "Bearer") {
			word = Placeholder
		}
		if word != "" {
			before = word
		}
		out.WriteString(word)
		out.WriteString(s[end:min(end+1, len(s))])
		s = s[min(end+1, len(s)):]
	}
	return out.String()
}

func hasMark(word string) bool {
	return slices.ContainsFunc(marks(), func(mark string) bool { return strings.HasPrefix(word, mark) })
}
