package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/packets"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/see/advice"
	"github.com/cnibox/cnibox/roles/see/capture"
	"github.com/cnibox/cnibox/roles/see/inventory"
)

const (
	// captureTick is how often the file and the view are brought up to date.
	captureTick = 500 * time.Millisecond
	maxSnaplen  = 256 << 10
	stdoutName  = "-"
)

// errEnough ends a capture that has all packets of --count.
var errEnough = errors.New("enough packets")

func (p *Process) captureCommand() *cli.Command {
	return &cli.Command{
		Name:      "capture",
		Usage:     "record the packets at both ends of a container's interface in one pcapng file",
		ArgsUsage: "CONTAINER",
		Description: `CONTAINER is a container's ID or the beginning of one, or a pod as NAMESPACE/NAME. The ends are
the interface in the container and its interface on the host, if it has one. The file
names both, and its comment has container, network and addresses. Wireshark and tcpdump
read it. The capture ends when it is interrupted or when an end is gone.

The filter has the words of pcap-filter(7): host, net, port, portrange, src, dst, ether, ip,
ip6, arp, rarp, tcp, udp, sctp, icmp, icmp6, vlan, and, or, not, and parentheses. Hosts and
ports are numbers. "and" and "or" have the same precedence. It looks behind one VLAN tag.

examples:
  cnibox capture default/web
  cnibox capture default/web --filter 'tcp port 80 or 443' -o web.pcapng
  cnibox capture 3f8a -i net1 --for 10s --snaplen 128 --json
  cnibox capture default/web -o - | wireshark -k -i -`,
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "filter", Usage: "only packets that match `EXPR`"},
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Value: "capture.pcapng", Usage: "also -o: the `FILE`, or - for stdout"},
			&cli.StringFlag{Name: "interface", Aliases: []string{"i"}, Usage: "also -i: the container's interface; without it, the one that was attached first"},
			&cli.IntFlag{Name: "count", Usage: "end after `N` packets, both ends together"},
			&cli.DurationFlag{Name: "for", Usage: "end after this `TIME`"},
			&cli.IntFlag{Name: "snaplen", Value: maxSnaplen, Usage: "keep at most `BYTES` of a packet"},
			&cli.BoolFlag{Name: "force", Usage: "replace FILE"},
		}, tableFlags()...),
		Action: p.onNode(p.capture),
	}
}

// captured is the output of `cnibox capture --json`.
type captured struct {
	File        string        `json:"file"`
	ContainerID string        `json:"containerID"`
	Pod         string        `json:"pod,omitempty"`
	Network     string        `json:"network"`
	Start       time.Time     `json:"start"`
	End         time.Time     `json:"end"`
	Ends        []capturedEnd `json:"ends"`
	// Gone is the reason if the capture ended because an end is gone.
	Gone string `json:"gone,omitempty"`
}

// capturedEnd counts the packets of one end. Dropped ones are not in the file.
type capturedEnd struct {
	Interface string `json:"interface"`
	// Where is the container, or "host".
	Where   string `json:"where"`
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
	Dropped uint64 `json:"dropped"`
}

func (p *Process) capture(c *cli.Context, h *roles.Host) error {
	if c.Args().Len() != 1 {
		return advice.Usagef("cnibox help capture", "want one container or pod")
	}
	snaplen := c.Int("snaplen")
	if snaplen < 1 || snaplen > maxSnaplen {
		return advice.Usagef("cnibox help capture", "--snaplen %d: want 1 to %d", snaplen, maxSnaplen)
	}
	if c.Int("count") < 0 || c.Duration("for") < 0 {
		return advice.Usagef("cnibox help capture", "--count %d, --for %s: want no negative number", c.Int("count"), c.Duration("for"))
	}
	filter, err := capture.Compile(c.String("filter"), uint32(snaplen))
	if err != nil {
		return advice.Usagef("cnibox help capture", "%v", err)
	}
	if c.String("output") == stdoutName && p.IsTerminal {
		return advice.Usagef("cnibox help capture", "-o -: stdout is a terminal; give a file, or a pipe to another program")
	}
	state, err := inventory.Read(c.Context, h)
	if err != nil {
		return stateHint(err)
	}
	a, err := interfaceOf(state, c.Args().First(), c.String("interface"))
	if err != nil {
		return advice.With(err, "cnibox state")
	}
	t := &captureTask{
		p: p, h: h, netns: a.Netns, limit: c.Int("count"), done: captured{File: c.String("output"), ContainerID: a.ContainerID, Pod: a.Pod, Network: a.Network},
	}
	if err := t.open(c.Context, a, filter); err != nil {
		return err
	}
	defer t.packets.Close() //nolint:errcheck // sockets that were only read
	if err := t.write(c, a); err != nil {
		return err
	}
	return t.report(c)
}

// interfaceOf returns the attachment of a container with an interface name, or the first one for "".
func interfaceOf(s *inventory.Inventory, container, ifName string) (*inventory.Attachment, error) {
	if err := s.OnlyContainer(container); err != nil {
		return nil, err
	}
	var found *inventory.Attachment
	var names []string
	for i := range s.Attachments {
		a := &s.Attachments[i]
		names = append(names, a.IfName)
		if (ifName == "" || a.IfName == ifName) && (found == nil || a.Created.Before(found.Created)) {
			found = a
		}
	}
	if found == nil {
		return nil, fmt.Errorf("container %q has no interface %q of cnibox; it has: %s", container, ifName, strings.Join(names, ", "))
	}
	return found, nil
}

// captureTask is a running capture.
type captureTask struct {
	p *Process
	h *roles.Host
	// netns is the path of the container's namespace, and dev and inode identify the namespace.
	netns      string
	dev, inode uint64
	packets    *packets.Capture
	file       *capture.Writer
	// limit is the number of packets to write, or 0, and written how many were written.
	limit, written int
	done           captured
}

// open opens the ends of an attachment. The open namespace is closed again, because it would keep the mount busy.
func (t *captureTask) open(ctx context.Context, a *inventory.Attachment, filter []unix.SockFilter) error {
	ns, err := t.h.Net.OpenNamespace(t.netns)
	if err != nil {
		return advice.With(fmt.Errorf("container %q: %w", a.ContainerID, err), "cnibox doctor")
	}
	defer ns.Close()
	t.dev, t.inode = ns.ID()
	ends := []packets.End{{Namespace: ns, Link: a.IfName}}
	t.done.Ends = []capturedEnd{{Interface: a.IfName, Where: a.Title()}}
	switch {
	case a.LinkMissing:
		fmt.Fprintf(t.p.Stderr, "cnibox: capture: interface %s on the host does not exist: only the container's end is recorded\n", printable(a.HostLink))
	case a.HostLink != "":
		ends = append(ends, packets.End{Link: a.HostLink})
		t.done.Ends = append(t.done.Ends, capturedEnd{Interface: a.HostLink, Where: hostName})
	}
	t.packets, err = packets.OpenCapture(ctx, t.h.Net, ends, filter)
	return err
}

// write writes the file until the capture ends.
func (t *captureTask) write(c *cli.Context, a *inventory.Attachment) (err error) {
	out := t.p.Stdout
	if t.done.File != stdoutName {
		f, err := createCapture(t.done.File, c.Bool("force"))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		out = f
	}
	comment := fmt.Sprintf("container %s\nnetwork %s\naddresses %s", a.ContainerID, a.Network, joinPrefixes(a.Addresses))
	if a.Pod != "" {
		comment = "pod " + printable(a.Pod) + "\n" + comment
	}
	t.file, err = capture.NewWriter(out, "cnibox "+t.p.Version, comment)
	if err != nil {
		return err
	}
	for _, e := range t.done.Ends {
		err := t.file.Interface(capture.Interface{
			Name: e.Interface, Description: printable(e.Where), Filter: c.String("filter"), Snaplen: uint32(c.Int("snaplen")),
		})
		if err != nil {
			return err
		}
	}
	ctx, stop := signal.NotifyContext(c.Context, unix.SIGINT, unix.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // the next signal ends the process
	if limit := c.Duration("for"); limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	t.done.Start = t.h.Now()
	if err := t.follow(ctx); err != nil {
		return err
	}
	t.done.End = t.h.Now()
	for i, e := range t.done.Ends {
		if err := t.file.Statistics(i, t.done.Start, t.done.End, e.Packets+e.Dropped, e.Dropped); err != nil {
			return err
		}
	}
	return t.file.Flush()
}

// createCapture creates a new file. O_EXCL does not follow links, which a user can make in a shared directory.
func createCapture(path string, replace bool) (*os.File, error) {
	const flags = os.O_WRONLY | os.O_CREATE | os.O_EXCL
	f, err := os.OpenFile(path, flags, 0o600)
	if !errors.Is(err, os.ErrExist) {
		return f, err
	}
	if !replace {
		return nil, advice.With(err, "--force, or another file with -o")
	}
	if err := unix.Unlink(path); err != nil {
		return nil, &os.PathError{Op: "unlink", Path: path, Err: err}
	}
	return os.OpenFile(path, flags, 0o600)
}

// follow writes packets until ctx ends, the limit is reached, or an end is gone.
func (t *captureTask) follow(ctx context.Context) error {
	for next := t.h.Now(); ; {
		if now := t.h.Now(); !now.Before(next) {
			next = now.Add(captureTick)
			if t.done.Gone == "" && t.isNamespaceGone() {
				t.done.Gone = "the container has ended"
			}
			if err := t.show(); err != nil {
				return err
			}
		}
		if ctx.Err() != nil || t.done.Gone != "" {
			if err := t.packets.Stop(); err != nil {
				return err
			}
		}
		err := t.packets.Next(t.add)
		switch {
		case err == nil:
		case errors.Is(err, io.EOF), errors.Is(err, errEnough):
			return t.show()
		case errors.Is(err, netops.ErrNotExist):
			t.done.Gone = err.Error()
		default:
			return err
		}
	}
}

// add writes a packet.
func (t *captureTask) add(end int, packet *packets.Packet) error {
	if err := t.file.Packet(end, packet); err != nil {
		return err
	}
	e := &t.done.Ends[end]
	e.Packets++
	e.Bytes += uint64(packet.Size)
	t.written++
	if t.written == t.limit {
		return errEnough
	}
	return nil
}

// isNamespaceGone reports whether the path leads to another namespace, or to none. The sockets of the capture keep the
// namespace itself.
func (t *captureTask) isNamespaceGone() bool {
	ns, err := t.h.Net.OpenNamespace(t.netns)
	if err != nil {
		return errors.Is(err, netops.ErrNoNetns)
	}
	defer ns.Close()
	dev, inode := ns.ID()
	return dev != t.dev || inode != t.inode
}

// show writes the buffered packets to the file and, on a terminal, shows the counters.
func (t *captureTask) show() (err error) {
	var texts []string
	for i := range t.done.Ends {
		e := &t.done.Ends[i]
		e.Dropped, err = t.packets.Dropped(i)
		if err != nil {
			return err
		}
		texts = append(texts, fmt.Sprintf("%s: %d packets, %d bytes, %d dropped", e.Interface, e.Packets, e.Bytes, e.Dropped))
	}
	if t.p.ErrIsTerminal {
		// ?7l and ?7h turn the wrapping of long lines off and on.
		fmt.Fprint(t.p.Stderr, "\r\x1b[K\x1b[?7l"+printable(strings.Join(texts, "; "))+"\x1b[?7h")
	}
	return t.file.Flush()
}

// report prints the counters at the end. They go to stderr if the packets went to stdout.
func (t *captureTask) report(c *cli.Context) error {
	if t.p.ErrIsTerminal {
		fmt.Fprint(t.p.Stderr, "\r\x1b[K")
	}
	out := t.p.Stdout
	if t.done.File == stdoutName {
		out = t.p.Stderr
	}
	if t.done.Gone != "" {
		fmt.Fprintf(t.p.Stderr, "cnibox: capture: %s\n", printable(t.done.Gone))
	}
	if c.Bool("json") {
		return writeJSON(out, t.done)
	}
	view := table{head: []string{"INTERFACE", "WHERE", "PACKETS", "BYTES", "DROPPED"}, paint: func(column int, cell string) string {
		if column == 4 && cell != "0" {
			return red
		}
		return ""
	}}
	for _, e := range t.done.Ends {
		view.add(e.Interface, e.Where, fmt.Sprint(e.Packets), fmt.Sprint(e.Bytes), fmt.Sprint(e.Dropped))
	}
	return view.write(out, t.p.style(c))
}
