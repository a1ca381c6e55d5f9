package netops

import (
	"testing"

	"github.com/vishvananda/netlink/nl"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// FuzzParseQdisc tests the decoders of the kernel's traffic control messages.
func FuzzParseQdisc(f *testing.F) {
	header := make([]byte, nl.SizeofTcMsg)
	header[8] = 1
	tbf := &Qdisc{Kind: kindTBF, TBF: &TBF{Rate: 1 << 33, Burst: 1, Limit: 1}}
	for _, m := range []nlconn.Message{tbf.request(0, 1), filterRequest(0, 1, 1)} {
		addRedirect(&m.Body, 1)
		f.Add(append(header, m.Body...))
	}
	f.Add([]byte{})
	f.Fuzz(func(_ *testing.T, b []byte) {
		_, _ = parseQdisc(b)
		_, _ = parseFilter(b)
	})
}
