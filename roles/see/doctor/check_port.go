package doctor

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/store"
)

// portChecks look at what else uses the published ports.
func portChecks() []Check {
	return []Check{
		{ID: "hostport-listener", Title: "a process of the node listens on a published port, and a container gets its connections", Reads: "sockets; the processes that have them open; node.db", Severity: Warning, find: func(f *Facts, add add) {
			told := map[string]bool{}
			for i := range f.Listeners {
				l := &f.Listeners[i]
				owner := l.Published.Owner
				pod := f.podOf(owner)
				object := fmt.Sprintf("port %d/%s of %s", l.Port, l.Proto, name(pod, owner))
				if told[object+l.At().String()] || l.KeepsConnections(true) && f.isKept(l) {
					continue // a server can have several sockets at one address
				}
				told[object+l.At().String()] = true
				fix := "use another host port, or stop " + l.Who()
				if l.KeepsConnections(false) { // ADD found no listener
					fix = restart(pod, owner)
				}
				add(object, fmt.Sprintf("%s listens on %s", l.Who(), l.At()), fix, owner)
			}
		}},
	}
}

// podOf returns the name of an attachment's pod, or "".
func (f *Facts) podOf(k store.Key) string {
	for _, a := range f.attachments() {
		if a.Key == k {
			return a.Pod
		}
	}
	return ""
}

// isKept reports whether an element leaves the connections to a loopback address to their listener.
func (f *Facts) isKept(l *attachment.PortListener) bool {
	family, address, port := netops.FamilyDigit(l.Addr), l.Addr.String(), strconv.Itoa(int(l.Port))
	return slices.ContainsFunc(f.Firewall.Labelled, func(o netops.Object) bool {
		e, ok := o.(*netops.Element)
		return ok && (e.Set == netops.PortsOfAddress(l.Proto, family) && slices.Equal(e.Key, []string{address, port}) ||
			e.Set == "portmap_ip_range"+family && slices.Equal(e.Key, []string{address, l.Proto, port}))
	})
}
