package iptables

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// Policy reports what prevents the host from forwarding packets of one address
// family.
type Policy struct {
	// Refused reports whether the filter table of iptables-nft drops the packets
	// that none of its rules accepts. An accept in another table does not change
	// that.
	Refused bool
	// RefusedLegacy reports the same for iptables-legacy.
	RefusedLegacy bool
	// Firewalld reports whether firewalld has chains in the kernel.
	Firewalld bool
}

// Policy reads what refuses to forward packets of an address family.
func (t *Tables) Policy(ctx context.Context, is6 bool) (Policy, error) {
	var p Policy
	family := FamilyOf(is6)
	filter := &nftTable{t.NFT, nft.Table{Family: family, Name: "filter"}}
	forward, err := filter.readChain(ctx, ForwardChain)
	if err != nil {
		return p, filter.describe(err)
	}
	p.Refused = forward != nil && forward.refuses()
	p.Firewalld, err = t.hasFirewalld(ctx, filter, forward != nil)
	if err != nil {
		return p, err
	}
	legacy, err := ReadLegacyChain(family)
	p.RefusedLegacy = legacy.Drops
	return p, nlconn.Explain(err, "read iptables-legacy's policy")
}

// OverlayFrom and OverlayTo begin the comments of an overlay's rules in the FORWARD chain. The network follows.
const (
	OverlayFrom = "cnibox overlay from "
	OverlayTo   = "cnibox overlay to "
)

// AdminRules reports whether an administrator's chain has rules: in the filter table
// of iptables-nft, and in that of iptables-legacy.
func (t *Tables) AdminRules(ctx context.Context, is6 bool, admin string) (native, legacy bool, err error) {
	filter := nft.Table{Family: FamilyOf(is6), Name: "filter"}
	rules, err := nft.Rules(ctx, t.NFT, filter, admin, ReadRule)
	if err != nil {
		return false, false, nlconn.Explain(err, fmt.Sprintf("read chain %q of nftables table %s", admin, filter))
	}
	table := t.Filter(filter.Family, true)
	if has, _ := table.Has(ctx, admin); !has {
		return len(rules) > 0, false, nil
	}
	st, err := table.Read(ctx)
	if err != nil {
		return false, false, err
	}
	return len(rules) > 0, len(st.Rules(admin)) > 0, nil
}

const (
	// FirewalldTable is the table of firewalld's nftables backend.
	FirewalldTable = "firewalld"
	// FirewalldChain is a chain of firewalld's iptables backend in the filter
	// table.
	FirewalldChain = "FORWARD_direct"
)

// hasFirewalld looks for the chains of both backends of firewalld. Only a filter table with a FORWARD chain has
// that of the iptables backend.
func (t *Tables) hasFirewalld(ctx context.Context, filter Table, hasForward bool) (bool, error) {
	has, err := t.Native(nft.Table{Family: unix.NFPROTO_INET, Name: FirewalldTable}).Has(ctx, "filter_FORWARD")
	if err != nil || has || !hasForward {
		return has, err
	}
	return filter.Has(ctx, FirewalldChain)
}

// IsLegacyLoaded reports whether the namespace has a table of iptables-legacy. It
// reads a file of /proc, because a request to the table itself would make the
// table.
func IsLegacyLoaded(family byte, table string) bool {
	file := "/proc/thread-self/net/ip_tables_names"
	if family == unix.NFPROTO_IPV6 {
		file = "/proc/thread-self/net/ip6_tables_names"
	}
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false // a process that cannot read the file cannot change the table either
	}
	defer unix.Close(fd) //nolint:errcheck // opened for reading
	var names [256]byte  // there are five tables
	n, err := unix.Read(fd, names[:])
	return err == nil && slices.Contains(strings.Fields(string(names[:n])), table)
}

// The socket options of linux/netfilter_ipv4/ip_tables.h.
// linux/netfilter_ipv6/ip6_tables.h has the same numbers and structures.
const (
	iptGetInfo    = 64
	iptGetEntries = 65
	// iptInfoSize is struct ipt_getinfo: the table's name, valid hooks, hook
	// entries, underflows, number of entries, size.
	iptInfoSize      = 84
	iptInfoHook      = 36 + 4*unix.NF_INET_FORWARD
	iptInfoUnderflow = 56 + 4*unix.NF_INET_FORWARD
	iptInfoBytes     = 80
	// iptEntriesHead is struct ipt_get_entries without its entries.
	iptEntriesHead = 40
	iptNameSize    = 32
	// legacyReads limits how often a table is read that changes at the same time.
	legacyReads = 100
	// maxLegacyTable limits the size of a table in bytes.
	maxLegacyTable = 256 << 20
)

// LegacyChain describes iptables-legacy's FORWARD chain.
type LegacyChain struct {
	// Loaded reports whether the table exists.
	Loaded, Drops bool
	// rules are its rules without the policy.
	rules []byte
}

// HasOverlay reports whether the chain has rules of an overlay.
func (c *LegacyChain) HasOverlay() bool { return bytes.Contains(c.rules, []byte(OverlayFrom)) }

// ReadLegacyChain reads iptables-legacy's FORWARD chain without its program. The policy
// is the last rule of the chain; the table's underflow is its offset.
func ReadLegacyChain(family byte) (c LegacyChain, err error) {
	if !IsLegacyLoaded(family, "filter") {
		return c, nil
	}
	info, entries, err := readLegacyTable(family, "filter", true)
	if err != nil {
		return c, err
	}
	begin, end := binary.NativeEndian.Uint32(info[iptInfoHook:]), binary.NativeEndian.Uint32(info[iptInfoUnderflow:])
	if begin > end || uint64(end) > uint64(len(entries)) {
		return c, fmt.Errorf("%w: rules at %d to %d of %d bytes", nlconn.ErrDamaged, begin, end, len(entries))
	}
	c.Loaded, c.rules = true, entries[begin:end]
	c.Drops, err = policyDrops(family, entries, end)
	return c, err
}

// LegacySize returns the size of the rules of iptables-legacy's FORWARD chain in bytes, and -1 if there is no table. It costs little
// however large the table is, and shows most changes: the kernel sends no notifications.
func LegacySize(family byte) int64 {
	if !IsLegacyLoaded(family, "filter") {
		return -1
	}
	info, _, err := readLegacyTable(family, "filter", false)
	if err != nil {
		return -1
	}
	return int64(binary.NativeEndian.Uint32(info[iptInfoUnderflow:])) - int64(binary.NativeEndian.Uint32(info[iptInfoHook:]))
}

// LegacyMentions reports whether iptables-legacy's table may have a chain whose
// name begins with text. It searches the table's entries, which contain the
// names. If it returns false, iptables-legacy need not be run.
func LegacyMentions(family byte, table, text string) bool {
	_, entries, err := readLegacyTable(family, table, true)
	return err != nil || bytes.Contains(entries, []byte(text))
}

// readLegacyTable reads struct ipt_getinfo, and if wanted the entries, of one of
// iptables-legacy's tables.
func readLegacyTable(family byte, table string, whole bool) (info, entries []byte, err error) {
	domain, level := unix.AF_INET, unix.SOL_IP
	if family == unix.NFPROTO_IPV6 {
		domain, level = unix.AF_INET6, unix.SOL_IPV6
	}
	fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return nil, nil, err
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	for range legacyReads {
		info := make([]byte, iptInfoSize)
		copy(info, table)
		if err := getsockopt(fd, level, iptGetInfo, info); err != nil || !whole {
			return info, nil, err
		}
		size := binary.NativeEndian.Uint32(info[iptInfoBytes:])
		if size > maxLegacyTable {
			return nil, nil, fmt.Errorf("%w: a table of %d bytes", nlconn.ErrDamaged, size)
		}
		entries := make([]byte, iptEntriesHead+int(size))
		copy(entries, table)
		binary.NativeEndian.PutUint32(entries[iptNameSize:], size)
		err := getsockopt(fd, level, iptGetEntries, entries)
		if errors.Is(err, unix.EAGAIN) {
			continue // another program replaced the table meanwhile
		}
		if err != nil {
			return nil, nil, err
		}
		return info, entries[iptEntriesHead:], nil
	}
	return nil, nil, fmt.Errorf("%w: iptables-legacy's table is being changed all the time", nlconn.ErrBusy)
}

// policyDrops reads the standard target of the entry at an offset, and reports
// whether it is DROP.
func policyDrops(family byte, entries []byte, offset uint32) (bool, error) {
	targetOffset := 88 // of struct ipt_entry
	if family == unix.NFPROTO_IPV6 {
		targetOffset = 140 // of struct ip6t_entry
	}
	const verdictAt = 32 // struct xt_standard_target
	at := uint64(offset) + uint64(targetOffset)
	if at+2 > uint64(len(entries)) {
		return false, fmt.Errorf("%w: no policy at %d of %d bytes", nlconn.ErrDamaged, offset, len(entries))
	}
	verdict := uint64(offset) + uint64(binary.NativeEndian.Uint16(entries[at:])) + verdictAt
	if verdict+4 > uint64(len(entries)) {
		return false, fmt.Errorf("%w: no verdict at %d of %d bytes", nlconn.ErrDamaged, verdict, len(entries))
	}
	return int32(binary.NativeEndian.Uint32(entries[verdict:])) == -nft.VerdictDrop-1, nil
}

// getsockopt reads a socket option into b. b also contains the request.
func getsockopt(fd, level, option int, b []byte) error {
	n := uint32(len(b))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&n)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
