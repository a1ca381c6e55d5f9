package policy

import (
	"context"
	"net/netip"
	"time"

	"github.com/cnibox/cnibox/netops/packets"
	"github.com/cnibox/cnibox/netops/podfilter"
	"github.com/cnibox/cnibox/roles/netpolicy"
	"github.com/cnibox/cnibox/roles/netpolicy/control"
)

const (
	// deniedTime is the time in which packets of one kind are one line.
	deniedTime = 10 * time.Second
	// maxKinds bounds the kinds of denied packets in that time, and maxDenied the lines that are kept for `cnibox drops --policy`.
	maxKinds, maxDenied = 200, 1000
)

// denials are the packets that policies denied. The goroutine of Keeper.Run owns them.
type denials struct {
	// log is nil if they are not logged. packets has those that it received.
	log     *packets.Log
	packets chan packets.Drop
	// kinds has the lines of packets that came in the last deniedTime, since began.
	kinds map[deniedKind]*control.Denied
	began time.Time
	// titles are those of the pods when the kinds began.
	titles map[netip.Addr]string
	// recent are the last lines, with their numbers in order.
	recent []control.Denied
	lines  int64
}

// deniedKind is what the packets of one line have in common.
type deniedKind struct {
	client, server netip.Addr
	protocol       string
	port           uint16
	direction      string
}

// openDenials makes denied packets known to the Keeper, in the network namespace of the calling thread. Without the kernel's modules it logs
// why not: policies do not depend on them.
func (k *Keeper) openDenials(ctx context.Context) {
	err := k.filter.CanLog(ctx)
	if err == nil {
		k.denials.log, err = packets.OpenLog(ctx, podfilter.LogGroup)
	}
	if err != nil {
		k.Host.Log.Warn("denied packets are not logged", "error", err)
		return
	}
	k.denials.packets, k.table.LogDenied = make(chan packets.Drop), true
}

// followDenials receives denied packets until ctx ends.
func (k *Keeper) followDenials(ctx context.Context) {
	for ctx.Err() == nil {
		_, err := k.denials.log.Next(ctx, func(d packets.Drop) {
			select {
			case k.denials.packets <- d:
			case <-ctx.Done():
			}
		})
		if err != nil {
			break
		}
	}
	_ = k.denials.log.Close() // it only received
}

// note logs the first denied packet of its kind, and counts the others.
func (k *Keeper) note(d packets.Drop) {
	now := time.Now()
	if now.Sub(k.denials.began) >= deniedTime {
		k.endDenials()
		k.denials.began, k.denials.kinds = now, map[deniedKind]*control.Denied{}
		k.denials.titles = k.table.Titles()
	}
	flow, verdict := netpolicy.NewExplainer(k.table).Packet(d.From, d.To, d.Proto) // the table changes from packet to packet
	kind := deniedKind{client: flow.Client, server: flow.Server, protocol: flow.Protocol, port: flow.Port}
	if verdict != nil {
		kind.direction = verdict.Direction
	}
	if line := k.denials.kinds[kind]; line != nil {
		line.Packets++
		return
	}
	if len(k.denials.kinds) >= maxKinds {
		return
	}
	line := &control.Denied{
		Time: now, Flow: flow, ClientPod: k.denials.titles[flow.Client], ServerPod: k.denials.titles[flow.Server], Why: "no rule of a known policy denies it now",
	}
	if verdict != nil {
		line.Direction, line.Policies, line.Why = verdict.Direction, verdict.Policies, verdict.String()
	}
	k.denials.kinds[kind] = line
	k.addDenied(*line, 1)
}

// addDenied logs and keeps a line.
func (k *Keeper) addDenied(line control.Denied, n int64) {
	k.denials.lines++
	line.Number, line.Packets = k.denials.lines, n
	k.denials.recent = append(k.denials.recent, line)
	if len(k.denials.recent) > maxDenied {
		k.denials.recent = append([]control.Denied{}, k.denials.recent[maxDenied/2:]...)
	}
	k.counts.addDenied(&line, n)
	k.Host.Log.Info("network policies denied packets", "client", line.Client, "clientPod", line.ClientPod, "server", line.Target(), "serverPod", line.ServerPod,
		"protocol", line.Protocol, "packets", n, "policy", line.Why)
}

// endOldDenials ends the lines of packets whose time is over.
func (k *Keeper) endOldDenials() {
	if time.Since(k.denials.began) >= deniedTime {
		k.endDenials()
	}
}

// endDenials logs how many more packets of each kind came.
func (k *Keeper) endDenials() {
	for _, line := range k.denials.kinds {
		if line.Packets > 0 {
			line.Time = time.Now()
			k.addDenied(*line, line.Packets)
		}
	}
	clear(k.denials.kinds)
}

// deniedAfter returns the lines behind one with a number.
func (k *Keeper) deniedAfter(number int64) *control.DeniedAnswer {
	a := &control.DeniedAnswer{IsOn: k.denials.log != nil, Denied: []control.Denied{}}
	for _, line := range k.denials.recent {
		if line.Number > number {
			a.Denied = append(a.Denied, line)
		}
	}
	return a
}
