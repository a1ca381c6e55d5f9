package agent

import (
	"fmt"
	"time"

	"github.com/cnibox/cnibox/netops/sockets"
	"github.com/cnibox/cnibox/store/cluster"
)

// Wrong checksums are a fault if there are leastWrong, and one in wrongShare datagrams. Ethernet's own checksum
// leaves far fewer.
const (
	leastWrong = 3
	wrongShare = 1000
)

// datagrams are those that the node had received at a time.
type datagrams struct {
	at time.Time
	sockets.Datagrams
	err error
}

// checksumFault is a fault of the checksums of other nodes' packets.
type checksumFault struct {
	Evidence string `json:"evidence"`
	Fix      string `json:"fix"`
}

// countDatagrams replaces the older count by the newer one, and that by a new one.
func (a *agent) countDatagrams() {
	a.datagrams = [2]datagrams{a.datagrams[1], a.readDatagrams()}
}

func (a *agent) readDatagrams() datagrams {
	d, err := sockets.CountDatagrams()
	return datagrams{time.Now(), d, err}
}

// checksumFault compares the datagrams that arrived in the last one to two minutes. The UDP checksum of a VXLAN packet
// includes the inner packet. So it is wrong too if another node's interface leaves a wrong checksum there.
func (a *agent) checksumFault(s *agentState) *checksumFault {
	if s.Backend != backendVXLAN {
		return nil
	}
	now := a.readDatagrams()
	wrong, all := now.WrongChecksum-s.since.WrongChecksum, now.Received-s.since.Received
	if now.err != nil || s.since.err != nil || wrong < leastWrong || wrong*wrongShare < all {
		return nil
	}
	f := &checksumFault{
		Evidence: fmt.Sprintf("%d of %d UDP datagrams in %s", wrong, all, now.at.Sub(s.since.at).Round(time.Second)),
		Fix:      "give all agents --vxlan-tx-checksum-offload=false, or set Backend.TxChecksumOffload to false",
	}
	if s.TxChecksum == cluster.Switch(false) {
		f.Fix = "ethtool -K INTERFACE tx off, on the nodes that send them: 'cnibox drops' names these where the kernel reports drops"
	}
	return f
}
