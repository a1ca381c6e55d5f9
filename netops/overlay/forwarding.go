package overlay

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// Attributes of RTM_NEWNETCONF, and the index that stands for all links
// (linux/netconf.h).
const (
	sizeofNetconfmsg  = 4
	netconfIndex      = 1
	netconfForwarding = 2
	allLinks          = -1
)

// forwardingState is what RTM_NEWNETCONF tells: whether packets that come in by a link
// are passed on.
type forwardingState struct {
	link int32
	off  bool
}

// parseForwarding reads the body of RTM_NEWNETCONF; not ok for other settings than
// forwarding.
func parseForwarding(b []byte) (f forwardingState, ok bool, err error) {
	if len(b) < sizeofNetconfmsg {
		return f, false, fmt.Errorf("netconf message of %d bytes: %w", len(b), unix.EBADMSG)
	}
	err = nlconn.EachAttr(b[sizeofNetconfmsg:], func(kind uint16, v []byte) error {
		switch kind {
		case netconfIndex:
			f.link = int32(nlconn.Int(v))
		case netconfForwarding:
			f.off, ok = nlconn.Int(v) == 0, true
		}
		return nil
	})
	return f, ok && err == nil, err
}

// forward has the host pass packets on between pods and other nodes, which plugins switch
// on with a pod's first interface and others (sysctl -p, a network manager) off again.
// Where /proc/sys is read-only the host has decided.
func (o *Kernel) forward() {
	global, each := "net/ipv4/ip_forward", "net/ipv4/conf/"
	if o.family == unix.AF_INET6 {
		global, each = "net/ipv6/conf/all/forwarding", "net/ipv6/conf/"
	}
	keys := []string{global}
	if o.wanted != nil {
		keys = append(keys, each+o.wanted.Name+"/forwarding")
	}
	for _, key := range keys {
		if err := o.setSysctl(key, "1"); err != nil {
			o.warnings = append(o.warnings, err)
		}
	}
}
