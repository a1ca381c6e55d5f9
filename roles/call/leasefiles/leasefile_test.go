package leasefiles

import (
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles"
)

// FuzzEntry: the decoder does not panic, and an accepted file is equal after it is
// written and read again.
func FuzzEntry(f *testing.F) {
	f.Add("10.1.2.3", []byte("one\r\neth0"))
	f.Add("2001_db8__1", []byte("one\neth0"))
	f.Add("last_reserved_ip.3", []byte("10.1.2.3"))
	f.Add("::ffff:1.2.3.4", []byte("one\r\n\r\neth0\x00"))
	f.Fuzz(func(t *testing.T, name string, content []byte) {
		if set, ok := parseCursorName(name); ok && (set < 0 || set >= maxSets) {
			t.Errorf("%q is of set %d", name, set)
		}
		e, err := Parse(name, content)
		if err != nil {
			return
		}
		if !e.Address.IsValid() || e.Address.Is4In6() || e.Address.Zone() != "" || !roles.IsName(e.ContainerID) || strings.ContainsAny(e.IfName, "/\x00 \n") {
			t.Fatalf("accepted %+v", e)
		}
		text := e.ContainerID
		if e.IfName != "" {
			text += LeaseBreak + e.IfName
		}
		again, err := Parse(e.Address.String(), []byte(text))
		if err != nil || again != e {
			t.Errorf("%+v reads back as %+v, %v", e, again, err)
		}
	})
}
