// Package dropmon reads the kernel's reports of dropped packets: the netlink family
// NET_DM of the module drop_monitor, in packet mode.
package dropmon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// Constants of linux/net_dropmon.h.
const (
	familyName = "NET_DM"
	version    = 2
	group      = 1 // NET_DM_GRP_ALERT, the same number in every kernel

	cmdConfig, cmdStart, cmdStop, cmdPacketAlert = 2, 3, 4, 5

	attrAlertMode, attrSymbol, attrTimestamp          = 1, 3, 5
	attrProto, attrPayload, attrTruncLen, attrOrigLen = 6, 7, 9, 10
	attrReason                                        = 23

	alertModePacket = 1
)

const (
	// truncate is the number of bytes of a packet that the kernel reports: headers only.
	truncate = 160
	buffer   = 4 << 20
)

// Monitor receives the reports, of all namespaces of the machine. The kernel reports to all receivers after one of them has turned the
// reports on, and stops for all when one turns them off. So only one program should use them.
type Monitor struct {
	conn   *nlconn.Conn
	family uint16
	events *nlconn.Listener
	isOn   bool
}

// Open turns the reports on, in the calling thread's namespace. The error wraps
// ErrNotSupported if the kernel has no reports, or not in this namespace, and ErrBusy if
// another program receives them. Reports that a killed program left on are taken over.
func Open(ctx context.Context) (m *Monitor, err error) {
	m = &Monitor{}
	defer func() {
		if err != nil {
			_ = m.Close(ctx) // err is the cause
			m = nil
		}
	}()
	m.conn, err = nlconn.Open(unix.NETLINK_GENERIC, "generic netlink")
	if err != nil {
		return m, err
	}
	m.family, err = m.conn.Family(ctx, familyName)
	if errors.Is(err, unix.ENOENT) {
		return m, fmt.Errorf("reports of dropped packets: %w, or not in this network namespace", nlconn.ErrNotSupported)
	}
	if err != nil {
		return m, err
	}
	err = m.configure(ctx)
	if errors.Is(err, unix.EBUSY) {
		err = m.takeOver(ctx)
	}
	if err != nil {
		return m, nlconn.Explain(err, "configure "+familyName)
	}
	m.events, err = nlconn.Listen(unix.NETLINK_GENERIC, "generic netlink", []int{group})
	if err != nil {
		return m, err
	}
	m.events.SetReceiveBuffer(buffer)
	err = m.conn.One(ctx, nlconn.NewGeneric(m.family, cmdStart, version))
	m.isOn = err == nil
	return m, nlconn.Explain(err, "start "+familyName)
}

// configure requests a report for each packet. The kernel refuses it while reports are on.
func (m *Monitor) configure(ctx context.Context) error {
	c := nlconn.NewGeneric(m.family, cmdConfig, version)
	c.Uint8(attrAlertMode, alertModePacket)
	c.Uint32(attrTruncLen, truncate)
	return m.conn.One(ctx, c)
}

// takeOver stops reports that nobody receives, and configures them.
func (m *Monitor) takeOver(ctx context.Context) error {
	list, err := os.ReadFile("/proc/thread-self/net/netlink")
	if err != nil {
		return err
	}
	if ports := readers(list); len(ports) > 0 {
		return fmt.Errorf("%w: another program receives them (port %s in /proc/net/netlink)", nlconn.ErrBusy, ports[0])
	}
	if err := m.conn.One(ctx, nlconn.NewGeneric(m.family, cmdStop, version)); err != nil {
		return err
	}
	return m.configure(ctx)
}

// readers returns the netlink ports of the sockets that receive the reports. list is
// /proc/net/netlink: its columns are the socket, protocol, port, and a mask of groups.
func readers(list []byte) (ports []string) {
	for line := range bytes.Lines(list) {
		f := bytes.Fields(line)
		if len(f) < 4 || string(f[1]) != strconv.Itoa(unix.NETLINK_GENERIC) {
			continue
		}
		groups, err := strconv.ParseUint(string(f[3]), 16, 32)
		if err == nil && groups&(1<<(group-1)) != 0 {
			ports = append(ports, string(f[2]))
		}
	}
	return ports
}

// Next waits for reports and calls each for every one. lost is true if the kernel could
// not deliver some.
func (m *Monitor) Next(ctx context.Context, each func(Drop)) (lost bool, err error) {
	lost, err = m.events.Next(ctx, func(h unix.NlMsghdr, data []byte) bool {
		if h.Type == m.family && len(data) >= nlconn.GenericHeader && data[0] == cmdPacketAlert {
			if d, err := decode(data[nlconn.GenericHeader:]); err == nil {
				each(d)
			}
		}
		return false
	})
	return lost, nlconn.Explain(err, "receive reports")
}

// decode reads the attributes of one report.
func decode(attrs []byte) (d Drop, err error) {
	var nanoseconds uint64
	var protocol uint16
	var packet []byte
	err = nlconn.ReadAttrs(attrs, []nlconn.Attr{
		{Kind: attrSymbol, At: &d.Symbol},
		{Kind: attrReason, At: &d.Reason},
		{Kind: attrTimestamp, At: &nanoseconds},
		{Kind: attrProto, At: &protocol},
		{Kind: attrOrigLen, At: &d.Size},
		{Kind: attrPayload, At: &packet},
	})
	d.Symbol, d.Reason = nlconn.Printable(d.Symbol), nlconn.Printable(d.Reason)
	if nanoseconds != 0 {
		d.Time = time.Unix(0, int64(nanoseconds))
	}
	d.readHeaders(protocol, packet)
	d.Size = max(d.Size, len(packet)) // the kernel reports the size of a truncated packet only
	return d, err
}

// Close turns the reports off and closes the sockets.
func (m *Monitor) Close(ctx context.Context) error {
	var errs []error
	if m.isOn {
		errs = append(errs, m.conn.One(context.WithoutCancel(ctx), nlconn.NewGeneric(m.family, cmdStop, version)))
	}
	if m.events != nil {
		errs = append(errs, m.events.Close())
	}
	if m.conn != nil {
		errs = append(errs, m.conn.Close())
	}
	return errors.Join(errs...)
}
