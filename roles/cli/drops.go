package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/packets"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/netpolicy"
	"github.com/cnibox/cnibox/roles/see/advice"
	"github.com/cnibox/cnibox/roles/see/inventory"
)

const (
	// dropInterval is how often repetitions are counted and containers are read again.
	dropInterval = time.Second
	// maxDropLines limits the new lines of one interval, and its repetitions. maxDropKeys limits
	// the lines whose repetitions are counted.
	maxDropLines = 20
	maxDropKeys  = 1000
)

func (p *Process) dropsCommand() *cli.Command {
	return &cli.Command{
		Name:  "drops",
		Usage: "print the packets that the kernel drops, with container and reason",
		Description: `Prints until it is interrupted what the kernel reports of dropped packets in all network
namespaces: time, container, its interface on the host, 5-tuple, and the reason (Linux 5.17
or newer) with the place in the kernel. A repetition is printed once a second, as a count;
IPv6 multicast is only counted. --all prints each packet.

Not reported: a packet without a MAC header, such as one that a container's own OUTPUT
chain drops ("cnibox path --probe" finds that), and what a device drops. The reports need
the module drop_monitor and the machine's first network namespace, and have one reader.
Without the module, the drop counters of the host's interfaces are printed as they rise.

--policy prints what the agent has logged with -policy-log instead: the last connections that
network policies denied, and new ones until it is interrupted. It needs no module.

examples:
  cnibox drops
  cnibox drops --pod default/web
  cnibox drops --policy
  cnibox drops --for 1s --json`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "pod", Usage: "only packets of the `CONTAINER`: a pod as NAMESPACE/NAME, or the beginning of an ID"},
			&cli.BoolFlag{Name: "policy", Usage: "print what network policies denied, from the agent's log"},
			&cli.DurationFlag{Name: "for", Usage: "end after this `TIME`"},
			&cli.BoolFlag{Name: "all", Usage: "print each packet"},
			&cli.BoolFlag{Name: "json", Usage: "print JSON, one object a line"},
		},
		Action: p.onNode(p.drops),
	}
}

func (p *Process) drops(c *cli.Context, h *roles.Host) error {
	if c.Duration("for") < 0 {
		return advice.Usagef("cnibox help drops", "--for %s: want no negative time", c.Duration("for"))
	}
	ctx, stop := signal.NotifyContext(c.Context, unix.SIGINT, unix.SIGTERM)
	defer stop()
	if limit := c.Duration("for"); limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	if c.Bool("policy") {
		if c.IsSet("all") {
			return advice.Usagef("cnibox help drops", "--all and --policy: use one of them")
		}
		return p.denials(ctx, h, c.String("pod"), c.Bool("json"))
	}
	l := &dropLog{p: p, h: h, pod: c.String("pod"), each: c.Bool("all"), json: c.Bool("json")}
	if err := l.readNode(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	return l.run(ctx)
}

// dropRecord is a line of `cnibox drops --json`: a dropped packet, or several alike.
type dropRecord struct {
	Time time.Time `json:"time"`
	Pod  string    `json:"pod,omitempty"`
	// Device is the container's interface on the host.
	Device string `json:"device,omitempty"`
	Proto  string `json:"proto,omitempty"`
	From   string `json:"from,omitempty"`
	To     string `json:"to,omitempty"`
	Size   int    `json:"size,omitempty"`
	Reason string `json:"reason,omitempty"`
	Symbol string `json:"symbol,omitempty"`
	// FromPod and ToPod are the pods at both ends, and Policy the verdict of network policies that denies the packet.
	FromPod string `json:"fromPod,omitempty"`
	ToPod   string `json:"toPod,omitempty"`
	Policy  string `json:"policy,omitempty"`
	// Count is the number of packets. A line without addresses counts packets that have no line.
	Count int `json:"count"`
}

// dropKey is what packets of one line have in common. The source port of TCP and UDP differs
// from connection to connection.
type dropKey struct {
	pod, device, proto, reason, symbol string
	from                               netip.Addr
	to                                 netip.AddrPort
}

// dropLog prints drops.
type dropLog struct {
	p          *Process
	h          *roles.Host
	pod        string
	each, json bool

	// containers and links are those of the node, to be compared with packets. only has the IDs of
	// the containers that --pod names.
	containers []inventory.Attachment
	links      []netops.LinkInfo
	only       map[string]bool
	// policies are read at the first drop after policyAge.
	policies   *policyView
	policyRead time.Time
	// lines has the lines of this interval and their repetitions. printed is the number of new
	// lines.
	lines   map[dropKey]*dropRecord
	printed int
	// multicast, folded and lost count the packets of this interval without a line.
	multicast, folded, lost int
	// failed is the error of the output.
	failed error
}

// readNode reads containers and links.
func (l *dropLog) readNode(ctx context.Context) error {
	state, err := inventory.Read(ctx, l.h)
	if err != nil {
		return err
	}
	l.containers = append([]inventory.Attachment{}, state.Attachments...)
	l.links, err = l.h.Net.Links(ctx, nil)
	if err != nil || l.pod == "" {
		return err
	}
	err = state.OnlyContainer(l.pod)
	if err != nil && l.only != nil {
		return nil // it has ended, and may come back
	}
	l.only = map[string]bool{}
	for _, a := range state.Attachments {
		l.only[a.ContainerID] = true
	}
	return advice.With(err, "cnibox state")
}

// run prints drops until ctx ends, which is not an error.
func (l *dropLog) run(ctx context.Context) (err error) {
	monitor, err := packets.OpenDrops(ctx)
	switch {
	case errors.Is(err, netops.ErrNotSupported):
		fmt.Fprintf(l.p.Stderr, "cnibox: drops: %v; the drop counters of interfaces follow\n", err)
		return l.runCounters(ctx)
	case errors.Is(err, netops.ErrBusy):
		return advice.With(err, "end the other program")
	case err != nil:
		return err
	}
	defer func() { err = errors.Join(err, monitor.Close(ctx)) }()
	l.lines = map[dropKey]*dropRecord{}
	for ctx.Err() == nil {
		if err := l.interval(ctx, monitor); err != nil {
			return err
		}
	}
	return nil
}

// interval prints the drops of one interval.
func (l *dropLog) interval(ctx context.Context, monitor *packets.Drops) error {
	tick, cancel := context.WithTimeout(ctx, dropInterval)
	defer cancel()
	for {
		lost, err := monitor.Next(tick, l.add)
		if lost {
			l.lost++
		}
		if tick.Err() != nil {
			break
		}
		if err != nil {
			return err
		}
	}
	if err := l.repetitions(); err != nil || ctx.Err() != nil {
		return err
	}
	return l.readNode(context.WithoutCancel(ctx))
}

// add prints or counts one drop.
func (l *dropLog) add(d packets.Drop) {
	r := dropRecord{Time: d.Time, Proto: d.Proto, Size: d.Size, Reason: d.Reason, Symbol: d.Symbol, Count: 1}
	a := l.containerOf(&d)
	if l.only != nil && a == nil {
		return
	}
	if a != nil {
		r.Pod, r.Device = a.Title(), a.HostLink
	} else {
		for i := range l.links {
			if mac := l.links[i].MAC; mac != "" && (mac == d.SourceMAC || mac == d.DestinationMAC) {
				r.Device = l.links[i].Name
			}
		}
	}
	if d.From.IsValid() {
		r.From, r.To = endpoint(d.From), endpoint(d.To)
	}
	to := d.To.Addr()
	if l.each {
		l.explain(&r, &d)
		l.write(&r)
		return
	}
	k := dropKey{r.Pod, r.Device, r.Proto, r.Reason, r.Symbol, d.From.Addr(), d.To}
	line := l.lines[k]
	switch {
	case line != nil:
		line.Count++
		line.Time = r.Time
	case to.Is6() && to.IsMulticast():
		l.multicast++
	case l.printed == maxDropLines || len(l.lines) == maxDropKeys:
		l.folded++
	default:
		l.printed++
		l.explain(&r, &d)
		l.write(&r)
		r.Count = 0
		l.lines[k] = &r
	}
}

// policyAge is the time after which the policies are read again.
const policyAge = 5 * time.Second

// explain adds the network policy that denies a packet of a connection, or of the answers to one, and the pods at both ends.
func (l *dropLog) explain(r *dropRecord, d *packets.Drop) {
	if !d.From.IsValid() {
		return
	}
	if now := l.h.Now(); now.Sub(l.policyRead) >= policyAge {
		l.policies, _ = readPolicies(context.Background(), l.h, l.links) // without them the drop is printed as it is
		l.policyRead = now
	}
	protocol := strings.ToUpper(strings.TrimSuffix(d.Proto, "v6"))
	v := l.policies.denial(netpolicy.Flow{Client: d.From.Addr(), Server: d.To.Addr(), Protocol: protocol, Port: d.To.Port()}, false)
	if answer := (netpolicy.Flow{Client: d.To.Addr(), Server: d.From.Addr(), Protocol: protocol, Port: d.From.Port()}); v == nil {
		v = l.policies.denial(answer, false)
	}
	if v != nil {
		r.Policy, r.FromPod, r.ToPod = v.String(), l.policies.pods[d.From.Addr()], l.policies.pods[d.To.Addr()]
	}
}

// containerOf returns the attachment that a packet is from or to, or nil; with --pod one of that
// container. Two networks may have the same addresses: the MAC decides.
func (l *dropLog) containerOf(d *packets.Drop) (found *inventory.Attachment) {
	for i := range l.containers {
		a := &l.containers[i]
		if l.only != nil && !l.only[a.ContainerID] {
			continue
		}
		isMAC := a.MAC != "" && (a.MAC == d.SourceMAC || a.MAC == d.DestinationMAC)
		isAddress := slices.ContainsFunc(a.Addresses, func(p netip.Prefix) bool { return p.Addr() == d.From.Addr() || p.Addr() == d.To.Addr() })
		if isMAC {
			return a
		}
		if isAddress && found == nil {
			found = a
		}
	}
	return found
}

// endpoint returns an address with its port, if it has one.
func endpoint(a netip.AddrPort) string {
	if a.Port() == 0 {
		return a.Addr().String()
	}
	return a.String()
}

// repetitions prints the lines that had more packets in this interval, the most frequent first, and
// forgets the others.
func (l *dropLog) repetitions() error {
	var again []*dropRecord
	for k, r := range l.lines {
		if r.Count == 0 {
			delete(l.lines, k)
		} else {
			again = append(again, r)
		}
	}
	sorting.Func(again, func(a, b *dropRecord) int { return cmp.Or(b.Count-a.Count, a.Time.Compare(b.Time)) })
	for i, r := range again {
		if i < maxDropLines {
			l.write(r)
		} else {
			l.folded += r.Count
		}
		r.Count = 0
	}
	for _, rest := range []struct {
		count int
		what  string
	}{{l.multicast, "to IPv6 multicast"}, {l.folded, "of other flows"}, {l.lost, "lost reports or more"}} {
		if rest.count > 0 {
			l.write(&dropRecord{Time: l.h.Now(), Reason: rest.what, Count: rest.count})
		}
	}
	l.printed, l.multicast, l.folded, l.lost = 0, 0, 0, 0
	return l.failed
}

// write prints one line.
func (l *dropLog) write(r *dropRecord) {
	var err error
	if l.json {
		err = json.NewEncoder(l.p.Stdout).Encode(r)
	} else {
		_, err = fmt.Fprintln(l.p.Stdout, r.text())
	}
	l.failed = cmp.Or(l.failed, err)
}

// text returns the line for people.
func (r *dropRecord) text() string {
	words := []string{r.Time.Format("15:04:05.000"), dash(r.Pod), dash(r.Device)}
	if r.Proto != "" {
		words = append(words, r.Proto)
	}
	if r.From != "" {
		words = append(words, r.From, ">", r.To)
	}
	if r.Policy != "" {
		words = append(words, "("+dash(r.FromPod), ">", dash(r.ToPod)+")")
	}
	if r.Size != 0 {
		words = append(words, fmt.Sprintf("%d bytes", r.Size))
	}
	if d := (&packets.Drop{Reason: r.Reason, Symbol: r.Symbol}).Cause(); d != "" {
		words = append(words, d)
	}
	if r.Policy != "" {
		words = append(words, "denied by network policies:", r.Policy)
	}
	if r.Count != 1 {
		words = append(words, fmt.Sprintf("(%d packets)", r.Count))
	}
	return printable(strings.Join(words, " "))
}

// runCounters prints the drop counters of the host's interfaces as they rise.
func (l *dropLog) runCounters(ctx context.Context) error {
	ticker := time.NewTicker(dropInterval)
	defer ticker.Stop()
	var before map[int]netops.Counters
	for {
		now, err := l.h.Net.Counters(context.WithoutCancel(ctx))
		if err != nil {
			return err
		}
		for _, link := range l.links {
			old, isKnown := before[link.Index]
			if isKnown {
				l.risen(link.Name, "received packets, dropped by the interface", now[link.Index].ReceivedDropped-old.ReceivedDropped)
				l.risen(link.Name, "sent packets, dropped by the interface", now[link.Index].SentDropped-old.SentDropped)
			}
		}
		before = now
		if l.failed != nil || ctx.Err() != nil {
			return l.failed
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
			if err := l.readNode(context.WithoutCancel(ctx)); err != nil {
				return err
			}
		}
	}
}

// risen prints a counter of an interface.
func (l *dropLog) risen(link, what string, by uint64) {
	i := slices.IndexFunc(l.containers, func(a inventory.Attachment) bool { return a.HostLink == link })
	if by == 0 || l.only != nil && (i < 0 || !l.only[l.containers[i].ContainerID]) {
		return
	}
	r := &dropRecord{Time: l.h.Now(), Device: link, Reason: what, Count: int(by)}
	if i >= 0 {
		r.Pod = l.containers[i].Title()
	}
	l.write(r)
}
