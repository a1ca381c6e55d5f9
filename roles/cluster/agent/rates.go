package agent

import (
	"context"

	"github.com/cnibox/cnibox/internal/service"
	"github.com/cnibox/cnibox/netops/rates"
)

// keepRates keeps the rates of the node's links for the page of 'cnibox ui', until the context ends.
func (a *agent) keepRates(ctx context.Context) {
	n := a.host.Net.Clone()
	defer n.Close() //nolint:errcheck // it only reads
	history := rates.New(rates.Span, nil)
	defer a.socket.Handle(map[string]service.Handler{service.Rates: func(context.Context, *service.Request) (any, error) { return history.Links(), nil }})()
	history.Follow(ctx, rates.Count(n))
}
