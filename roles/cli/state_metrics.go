package cli

import (
	"github.com/cnibox/cnibox/internal/metrics"
	"github.com/cnibox/cnibox/roles"
)

func (p *Process) stateMetrics(c *invocation, h *roles.Host) error {
	w := &metrics.Writer{}
	if err := h.Store.WriteMetrics(c.Context, w); err != nil {
		return err
	}
	_, err := p.Stdout.Write(w.Bytes())
	return err
}
