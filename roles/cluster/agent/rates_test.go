package agent_test

import (
	"context"
	"testing"

	"github.com/cnibox/cnibox/internal/service"
	"github.com/cnibox/cnibox/netops/rates"
)

// TestRates: the agent answers with the rates of the node's links, also after its socket was asked before.
func TestRates(t *testing.T) {
	w := newWorld(t, 1, `{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}`)
	w.startAll()
	n := w.nodes[0]
	for range 2 {
		var links map[string]*rates.Rates
		w.within(func() bool {
			err := service.Ask(context.Background(), n.socket(), service.Rates, nil, service.Into(&links))
			return err == nil && links["eth1"] != nil
		}, func() string { return "no rates of eth1" })
		if links["eth1"].Span != rates.Span {
			t.Errorf("%+v", links["eth1"])
		}
	}
}
