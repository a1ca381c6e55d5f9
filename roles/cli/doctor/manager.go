package doctor

import (
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/netops"
)

// managed returns the interfaces that NetworkManager configures.
func managed(links []netops.LinkInfo) (names []string) {
	dir, err := os.OpenRoot("/run/NetworkManager/devices")
	if err != nil {
		return nil // it does not run
	}
	defer dir.Close()
	const most = 1 << 16
	for _, l := range links {
		if text, err := smallfile.ReadTrusted(dir, strconv.Itoa(l.Index), most); err == nil && slices.Contains(strings.Split(string(text), "\n"), "managed=true") {
			names = append(names, l.Name)
		}
	}
	return names
}

// configure returns the command that gives an interface its addresses and routes again.
func (f *Facts) configure(link string) string {
	if slices.Contains(f.Managed, link) {
		return "nmcli device reapply " + link
	}
	return "networkctl reconfigure " + link
}
