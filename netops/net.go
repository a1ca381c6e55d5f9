package netops

import (
	"context"
	"errors"

	"github.com/cnibox/cnibox/internal/dbus"
	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/ruleset"
)

// Options are what a Net is made with. All may be left out.
type Options struct {
	// Probe sees every write; for tests.
	Probe Probe
	// Restore lists every element that recorded attachments want. It is asked
	// when our nftables tables had to be made anew, so that they are complete again.
	Restore func(context.Context) ([]*Element, error)
	// Forwards list the rules in iptables' filter table that are recorded: what a
	// flush of that table dropped.
	Forwards func(context.Context) ([]*Forward, error)
	// Sources list the firewalld sources that recorded attachments want, one for
	// each: what a reload of firewalld dropped.
	Sources func(context.Context) ([]*ZoneSource, error)
	// IPTables runs iptables-legacy's programs; without it their tables are out
	// of reach.
	IPTables IPTables
}

// Net is the kernel's networking as roles see it. It opens its sockets when
// they are first needed, in the namespace of the calling thread, and keeps
// them until Close. It is safe for one call at a time.
type Net struct {
	probe Probe
	host  *Namespace
	nft   *nft.Client
	// restore is Options.Restore.
	restore func(context.Context) ([]*Element, error)
	// planned are the indexes of the host's links that the last Plan read, for the
	// Apply of it.
	planned map[linkRef]int
	// byName are the named namespaces that were opened.
	byName map[string]*Namespace
	// iptables is Options.IPTables.
	iptables IPTables
	// recordedForwards is Options.Forwards.
	recordedForwards func(context.Context) ([]*Forward, error)
	// sources is Options.Sources, and bus D-Bus' system bus.
	sources func(context.Context) ([]*ZoneSource, error)
	bus     *dbus.Conn
}

// New opens nothing.
func New(o Options) *Net {
	return &Net{probe: o.Probe, host: &Namespace{}, nft: nft.New(ruleset.Schema, restorer(o.Restore)), restore: o.Restore, iptables: o.IPTables, sources: o.Sources, recordedForwards: o.Forwards}
}

// restorer lists what restore does, nil for nil.
func restorer(restore func(context.Context) ([]*Element, error)) func(context.Context) ([]*nft.Element, error) {
	if restore == nil {
		return nil
	}
	return func(ctx context.Context) ([]*nft.Element, error) {
		recorded, err := restore(ctx)
		els := make([]*nft.Element, len(recorded))
		for i, e := range recorded {
			els[i] = (*nft.Element)(e)
		}
		return els, err
	}
}

// Options are what the Net was made with.
func (n *Net) Options() Options {
	return Options{Probe: n.probe, Restore: n.restore, Forwards: n.recordedForwards, Sources: n.sources, IPTables: n.iptables}
}

// Apart is a Net with the same options and sockets of its own, for calls that
// are made at the same time.
func (n *Net) Apart() *Net {
	return New(n.Options())
}

// Close closes the sockets. After deletes of nftables elements this waits for
// a grace period of the kernel (13 ms): it is the last thing that a process does.
func (n *Net) Close() error {
	return errors.Join(n.closeBus(), n.closeNamed(), n.host.Close(), n.nft.Close())
}
