package path

import (
	"errors"
	"net/netip"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles/see/check"
	"github.com/cnibox/cnibox/roles/see/view"
)

// passesTracked reports whether no tracked connection of the client leads its packets to a port elsewhere than the rules do.
// fix is the command that deletes those which do.
func (w *walker) passesTracked(to netip.AddrPort, fix string, leads func(netops.Connection) bool) bool {
	if !w.IsUDP {
		return true
	}
	all, err := w.host.Datagrams()
	for _, c := range all {
		isClient := c.Client == w.found.From || !w.found.From.IsValid() && w.isHostAddress(c.Client)
		switch {
		case c.To != to || !isClient || leads(c):
		case w.Forgets:
			err = errors.Join(err, w.net.Apply(w.ctx, check.Forget(check.FlowsOf(c)), nil))
		default:
			where := "to " + c.Server.String()
			if c.Server == to.Addr() {
				where = "to " + view.HostName + " itself"
			}
			w.stop(fix, "the kernel sends the packets from port %d %s, as it did with the first one: it tracks them as one connection", c.ClientPort, where)
			w.isTracked = true
			return false
		}
	}
	return !w.fail(err)
}
