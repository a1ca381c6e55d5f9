package podtable

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
)

// Group is the group of the links of pods on the host. Sets have the links' names, which an administrator or udev can change, and the group stays:
// a link of the group whose name no set has passes nothing until the agent has found its name.
const Group = 0x636e69

// renamed drops packets by a link of the group whose name is not in a set.
func renamed(group uint32, name nft.Part, set string) nft.Rule {
	return closing(wayRenamed,
		nft.CompareMeta(group, unix.NFT_CMP_EQ, binary.NativeEndian.AppendUint32(nil, Group)), name, notIn(set), denied())
}

func renamedFrom(set string) nft.Rule {
	return renamed(unix.NFT_META_IIFGROUP, nft.InputLink(), set)
}

func renamedTo(set string) nft.Rule {
	return renamed(unix.NFT_META_OIFGROUP, nft.OutputLink(), set)
}
