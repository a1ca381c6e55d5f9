package dropmon

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// Constants of linux/netfilter/nfnetlink_log.h.
const (
	logPacket, logConfig = 0, 1 // NFULNL_MSG_*

	logConfigCommand, logConfigMode, logConfigThreshold = 1, 2, 5 // NFULA_CFG_*

	logBind       = 1 // NFULNL_CFG_CMD_BIND
	logCopyPacket = 2 // NFULNL_COPY_PACKET

	logHeader, logPayload = 1, 9 // NFULA_*
)

// Log receives the packets that rules of nftables pass to a group of nfnetlink_log, in the namespace in which it was opened. A group has one
// reader.
type Log struct{ events *nlconn.Listener }

// OpenLog becomes the reader of a group. The error wraps ErrBusy if the group has another reader, and ErrNotSupported if the kernel has no
// nfnetlink_log.
func OpenLog(ctx context.Context, group uint16) (*Log, error) {
	events, err := nlconn.Listen(unix.NETLINK_NETFILTER, "nfnetlink_log", nil)
	if err != nil {
		return nil, err
	}
	l := &Log{events}
	for _, fill := range []func(*nlconn.Message){
		func(m *nlconn.Message) { m.Uint8(logConfigCommand, logBind) },
		func(m *nlconn.Message) {
			mode := append(binary.BigEndian.AppendUint32(nil, truncate), logCopyPacket, 0) // struct nfulnl_msg_config_mode
			m.Bytes(logConfigMode, mode)
			m.Net32(logConfigThreshold, 1) // no packet waits for others
		},
	} {
		m := logRequest(group)
		fill(&m)
		if err := events.Ask(ctx, m); err != nil {
			_ = events.Close() // err is the cause
			return nil, nlconn.Explain(err, fmt.Sprintf("read group %d of nfnetlink_log", group))
		}
	}
	return l, nil
}

// subsystem is NFNL_SUBSYS_ULOG.
const subsystem = 4

// logRequest returns a request to configure a group.
func logRequest(group uint16) nlconn.Message {
	return nlconn.Message{Kind: subsystem<<8 | logConfig, Header: logFamily(group)}
}

// logFamily is a struct nfgenmsg of a group.
type logFamily uint16

// Serialize returns the header: the family, its version, and the group.
func (f logFamily) Serialize() []byte {
	return binary.BigEndian.AppendUint16([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0}, uint16(f))
}

// Next waits for packets and calls each for every one. lost is true if the kernel could not deliver some.
func (l *Log) Next(ctx context.Context, each func(Drop)) (lost bool, err error) {
	lost, err = l.events.Next(ctx, func(h unix.NlMsghdr, data []byte) bool {
		const header = 4 // struct nfgenmsg
		if h.Type == subsystem<<8|logPacket && len(data) >= header {
			if d, err := decodeLogged(data[header:]); err == nil {
				d.Time = time.Now()
				each(d)
			}
		}
		return false
	})
	return lost, nlconn.Explain(err, "receive logged packets")
}

// decodeLogged reads the attributes of a packet, which begins with its network header.
func decodeLogged(attrs []byte) (d Drop, err error) {
	header, err := nlconn.Find(attrs, logHeader)
	if err != nil || len(header) < 2 {
		return d, fmt.Errorf("logged packet: %w: no header", nlconn.ErrDamaged)
	}
	packet, err := nlconn.Find(attrs, logPayload)
	if err != nil {
		return d, err
	}
	d.readNetwork(binary.BigEndian.Uint16(header), packet)
	d.Size = len(packet)
	return d, nil
}

// Close closes the socket.
func (l *Log) Close() error { return l.events.Close() }
