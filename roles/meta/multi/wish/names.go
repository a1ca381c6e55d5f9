package wish

import (
	"strings"

	"github.com/cnibox/cnibox/roles"
)

const (
	// maxLabel and maxSubdomain are the limits of RFC 1123, section 2.1.
	maxLabel, maxSubdomain = 63, 253
	// maxText bounds texts that have no form of their own.
	maxText = 253
)

// isLabel tells whether s is a DNS-1123 label, as Kubernetes has it for
// namespaces.
func isLabel(s string) bool {
	if s == "" || len(s) > maxLabel || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' })
}

// isSubdomain tells whether s is labels with dots between, as Kubernetes has it
// for the names of objects.
func isSubdomain(s string) bool {
	if len(s) > maxSubdomain {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if !isLabel(label) {
			return false
		}
	}
	return true
}

// isForeignKey tells whether a key may be somebody's own: one in reverse domain
// name notation, "org.foo.bar.key-name" (the standard, section 4.1.2.1).
func isForeignKey(s string) bool {
	return strings.Contains(s, ".") && isSubdomain(strings.ToLower(strings.NewReplacer("/", ".", "_", "-").Replace(s)))
}

// isNetworkName tells whether s can be the name of a CNI network (CNI spec
// 1.1.0, section 1).
func isNetworkName(s string) bool {
	if s == "" || len(s) > maxText || strings.IndexByte("_.-", s[0]) >= 0 {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("_.-", r)
	})
}

// isText tells whether s is printable ASCII of a bearable length.
func isText(s string) bool {
	return s != "" && len(s) <= maxText && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

func checkIfName(f *roles.Faults, path, name string) {
	if err := roles.LinkName(name); err != nil {
		f.Addf(path, "%v", err)
	}
}
