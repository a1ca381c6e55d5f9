package wish

import (
	"strings"
)

const (
	// maxLabel and maxSubdomain are the limits of RFC 1123, section 2.1.
	maxLabel, maxSubdomain = 63, 253
	// maxText is the maximum length of texts without a defined form.
	maxText = 253
)

// IsLabel reports whether s is a DNS-1123 label, Kubernetes' form of a namespace's name.
func IsLabel(s string) bool { return len(s) <= maxLabel && isPart(s) }

// IsSubdomain reports whether s is a DNS-1123 subdomain, Kubernetes' form of an object's name.
func IsSubdomain(s string) bool {
	if len(s) > maxSubdomain {
		return false
	}
	for part := range strings.SplitSeq(s, ".") {
		if !isPart(part) {
			return false
		}
	}
	return true
}

func isPart(s string) bool {
	if s == "" || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' })
}

// isThirdPartyKey reports whether a key is in reverse domain name notation, "org.foo.bar.key-name",
// which the standard reserves for third parties (section 4.1.2.1).
func isThirdPartyKey(s string) bool {
	return strings.Contains(s, ".") && IsSubdomain(strings.ToLower(strings.NewReplacer("/", ".", "_", "-").Replace(s)))
}

// isText reports whether s is printable ASCII of at most maxText bytes.
func isText(s string) bool {
	return s != "" && len(s) <= maxText && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}
