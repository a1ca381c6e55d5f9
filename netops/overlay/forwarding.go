package overlay

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// Constants of RTM_NEWNETCONF (linux/netconf.h): the size of its header, its
// attributes, and the index that means all links.
const (
	sizeofNetconfmsg  = 4
	netconfIndex      = 1
	netconfForwarding = 2
	allLinks          = -1
)

// forwardingState is the content of RTM_NEWNETCONF: whether the host forwards
// packets that arrive at a link.
type forwardingState struct {
	link int32
	off  bool
}

// parseForwarding reads the body of RTM_NEWNETCONF. ok is false for settings
// other than forwarding.
func parseForwarding(b []byte) (f forwardingState, ok bool, err error) {
	if len(b) < sizeofNetconfmsg {
		return f, false, fmt.Errorf("netconf message of %d bytes: %w", len(b), unix.EBADMSG)
	}
	var on *uint32
	err = nlconn.ReadAttrs(b[sizeofNetconfmsg:], []nlconn.Attr{{Kind: netconfIndex, At: &f.link}, {Kind: netconfForwarding, At: &on}})
	f.off = on != nil && *on == 0
	return f, on != nil && err == nil, err
}

// enableForwarding enables the forwarding of packets between pods and other nodes. Plugins
// enable it with a pod's first interface. Other programs (sysctl -p, a network
// manager) may disable it again. If /proc/sys is read-only, the host's setting
// stays and enableForwarding adds a warning.
func (o *Kernel) enableForwarding(ctx context.Context) {
	global, each := "net/ipv4/ip_forward", "net/ipv4/conf/"
	if o.family == unix.AF_INET6 {
		global, each = "net/ipv6/conf/all/forwarding", "net/ipv6/conf/"
	}
	keys := []string{global}
	if o.wanted != nil {
		keys = append(keys, each+o.wanted.Name+"/forwarding")
	}
	for _, key := range keys {
		if err := o.setSysctl(ctx, key, "1"); err != nil {
			o.warnings = append(o.warnings, err)
		}
	}
}
