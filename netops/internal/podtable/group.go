package podtable

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// Group is the group of the links of pods on the host. Sets have the links' names, which an administrator or udev can change, and the group stays:
// a link of the group whose name no set has passes nothing until the agent has found its name.
const Group = 0x636e69

// renamed drops packets by a link of the group whose name is not in a set.
func renamed(group, name uint32, set string) baseRule {
	return closing(wayRenamed, func(e expressions) {
		e.Meta(group, register)
		e.Compare(unix.NFT_CMP_EQ, register, binary.NativeEndian.AppendUint32(nil, Group))
		e.Meta(name, register)
		e.Lookup(set, true)
		e.Counter()
		drop(e)
	})
}

func renamedFrom(set string) baseRule {
	return renamed(unix.NFT_META_IIFGROUP, unix.NFT_META_IIFNAME, set)
}

func renamedTo(set string) baseRule {
	return renamed(unix.NFT_META_OIFGROUP, unix.NFT_META_OIFNAME, set)
}
