package path

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles/see/advice"
	"github.com/cnibox/cnibox/roles/see/check"
	"github.com/cnibox/cnibox/roles/see/inventory"
	"github.com/cnibox/cnibox/roles/see/view"
)

// isOurs reports whether no rule of another program translates packets to a published port before that of cnibox does.
func (w *walker) isOurs(published, owner string) bool {
	_, protocol, _ := strings.Cut(published, "/")
	if w.in == "" {
		return true // the host's own packets pass other chains
	}
	taken, err := w.host.TranslatedBefore(w.in, netip.AddrPortFrom(w.found.To, w.port), protocol)
	if err == nil && taken != nil {
		accept := fmt.Sprintf("%s dport %d", protocol, w.port)
		w.stop(taken.Exception(accept, ""), "%s is published by %s, but a rule of another program translates it first: %s", published, owner, strings.TrimSuffix(taken.Rule, ": drop"))
	}
	return !w.fail(err) && taken == nil
}

// publishedPort replaces the destination if a container of this node publishes its port. It reports whether the path goes on.
func (w *walker) publishedPort() bool {
	if w.port == 0 {
		return true
	}
	own, err := w.host.Way(netops.Packet{To: w.found.To})
	if err != nil && !isNotExist(err) && !errors.As(err, new(*netops.RouteRefusal)) {
		return !w.fail(err)
	}
	for i := range w.attachments {
		a := &w.attachments[i]
		for _, p := range a.Ports {
			if !isPublished(p, w.found.To, w.port) || !strings.HasSuffix(p, "/"+w.protocol()) {
				continue
			}
			switch isHere := own.Local || w.isHostAddress(w.found.To); {
			case !isHere && strings.HasPrefix(p, w.found.To.String()+":"):
				fault, err := check.PublishedAt(w.host, w.found.To)
				if !w.fail(err) && fault != nil {
					w.stop(fault.Fix, "%s is published by %s, and %s", p, a.Title(), fault.Text)
				}
				return false
			case !isHere:
				continue
			}
			for _, prefix := range a.Addresses {
				if to := prefix.Addr(); to.Is6() == w.found.To.Is6() {
					return w.toContainer(p, a, to)
				}
			}
		}
	}
	return true
}

// toContainer replaces the destination by the address of a container that publishes a port. It reports whether the path goes on.
func (w *walker) toContainer(published string, a *inventory.Attachment, to netip.Addr) bool {
	if !w.isOurs(published, a.Title()) {
		return false
	}
	w.step(view.HostName, "port", "%s is published by %s: the destination becomes %s", published, a.Title(), to)
	if !w.passesTracked(netip.AddrPortFrom(w.found.To, w.port), advice.Repair, func(c netops.Connection) bool { return check.Leads(c, a.Addresses, a.Made) }) {
		return false
	}
	w.original, w.translated = netip.AddrPortFrom(w.found.To, w.port), true
	w.found.To, w.port = to, portBehind(a, to, w.port, w.protocol())
	return true
}

// portBehind returns the container's port behind a published one, or 0 if it is not known.
func portBehind(a *inventory.Attachment, to netip.Addr, port uint16, protocol string) uint16 {
	for _, c := range a.Made {
		e, is := c.Do.Object.(*netops.Element)
		if !is || !strings.HasPrefix(e.Set, "portmap") || len(e.Key) < 2 || len(e.Value) == 0 || e.Value[0] != to.String() {
			continue
		}
		isProtocol := strings.HasPrefix(e.Set, "portmap_ip_"+protocol) || slices.Contains(e.Key, protocol)
		if !isProtocol || !isPublished(e.Key[len(e.Key)-1], to, port) {
			continue
		}
		if len(e.Value) == 1 { // a range keeps its ports
			return port
		}
		n, _ := strconv.ParseUint(e.Value[1], 10, 16)
		return uint16(n)
	}
	return 0
}

// isPublished reports whether a published port, as `cnibox state` prints it, is a port of an address.
func isPublished(published string, to netip.Addr, port uint16) bool {
	ports, _, _ := strings.Cut(published, "/")
	if i := strings.LastIndex(ports, ":"); i >= 0 {
		if a, err := netip.ParseAddr(ports[:i]); err != nil || a != to {
			return false
		}
		ports = ports[i+1:]
	}
	first, last, isRange := strings.Cut(ports, "-")
	if !isRange {
		last = first
	}
	var least, most uint16
	_, err := fmt.Sscanf(first+" "+last, "%d %d", &least, &most)
	return err == nil && least <= port && port <= most
}
