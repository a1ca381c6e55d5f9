package netops

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

const (
	// maxAlias is the kernel's limit for an ifalias in bytes.
	maxAlias = 255
	// labelPrefix is the prefix of the alias of cnibox's links.
	labelPrefix = "cnibox:"
)

// words builds a line for users.
type words []string

// value appends a name and its value unless the value is empty.
func (w *words) value(name, value string) {
	if value != "" {
		*w = append(*w, name, value)
	}
}

// number appends a name and its value unless the value is 0.
func (w *words) number(name string, value int) {
	if value != 0 {
		*w = append(*w, name, strconv.Itoa(value))
	}
}

// flag appends text if on is set.
func (w *words) flag(on bool, text string) {
	if on {
		*w = append(*w, text)
	}
}

func (w words) String() string { return strings.Join(w, " ") }

func onOff(b bool) string {
	if b {
		return "on"
	}
	return "off"
}

func upDown(b bool) string {
	if b {
		return "up"
	}
	return "down"
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// ownLabel returns the first word of a cnibox alias, or "" for other aliases.
// The rest of the alias is for users and can change.
func ownLabel(alias string) string {
	if !strings.HasPrefix(alias, labelPrefix) {
		return ""
	}
	label, _, _ := strings.Cut(alias, " ")
	return label
}

// isLabelled reports whether alias has the label of own. If own has no label,
// both must be equal.
func isLabelled(alias, own string) bool {
	if label := ownLabel(own); label != "" {
		return ownLabel(alias) == label
	}
	return alias == own
}

// differences collects the differences that Verify finds in one object.
type differences struct {
	object Object
	list   []Difference
}

// compare adds a difference if have differs from want.
func (d *differences) compare(what, want, have string) {
	if want != have {
		d.list = append(d.list, Difference{Object: d.object, Want: what + " " + want, Have: what + " " + orNone(have)})
	}
}

func (d *differences) add(want, have string) {
	d.list = append(d.list, Difference{Object: d.object, Want: want, Have: have})
}

// absence returns the difference of an absent object.
func absence(o Object) Difference { return Difference{Object: o, Want: "present", Have: "absent"} }

// absentIf returns the one difference of an absent object, or err.
func absentIf(err error, o Object) ([]Difference, error) {
	if err != nil {
		return nil, err
	}
	return []Difference{absence(o)}, nil
}

// checkAlias applies the kernel's limits for an ifalias.
func checkAlias(alias string) error {
	if len(alias) > maxAlias {
		return fmt.Errorf("alias of %d bytes, more than %d: %w", len(alias), maxAlias, ErrInvalid)
	}
	if strings.ContainsRune(alias, 0) {
		return fmt.Errorf("alias %q: %w", alias, ErrInvalid)
	}
	return nil
}

// checkIndex accepts a link index, or 0 for none.
func checkIndex(index int) error { return rtnl.CheckRange("link index", index, 0, 1<<31-1) }

// checkPrefix accepts an address of either family with its prefix length.
func checkPrefix(what string, p netip.Prefix) error {
	if !p.IsValid() || p.Addr().Is4In6() || p.Addr().Zone() != "" {
		return fmt.Errorf("%s %s: %w", what, p, ErrInvalid)
	}
	return nil
}

// checkAddr accepts an address of either family and the zero Addr.
func checkAddr(what string, a netip.Addr) error {
	if a.Is4In6() || a.Zone() != "" {
		return fmt.Errorf("%s %s: %w", what, a, ErrInvalid)
	}
	return nil
}
