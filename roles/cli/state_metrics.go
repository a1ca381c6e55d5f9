package cli

import (
	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/internal/metrics"
	"github.com/cnibox/cnibox/roles"
)

func (p *Process) metricsCommand() *cli.Command {
	return &cli.Command{
		Name:  "metrics",
		Usage: "print this node's metrics in Prometheus' text format",
		Description: `The agent serves these and its own metrics on /metrics. Without an agent, pass them to
node_exporter's textfile collector.

examples:
  cnibox state metrics >/var/lib/node_exporter/cnibox.tmp &&
    mv /var/lib/node_exporter/cnibox.tmp /var/lib/node_exporter/cnibox.prom`,
		Action: p.onNode(func(c *cli.Context, h *roles.Host) error {
			w := &metrics.Writer{}
			if err := h.Store.WriteMetrics(c.Context, w); err != nil {
				return err
			}
			_, err := p.Stdout.Write(w.Bytes())
			return err
		}),
	}
}
