package cli

import (
	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/internal/metrics"
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
		Action: func(c *cli.Context) error {
			if c.Args().Len() > 0 {
				return usagef("cnibox help state metrics", "want no argument")
			}
			h, done, err := p.host(c.Context, "")
			if err != nil {
				return err
			}
			defer done()
			w := &metrics.Writer{}
			if err := h.Store.WriteMetrics(c.Context, w); err != nil {
				return stateHint(err)
			}
			_, err = p.Stdout.Write(w.Bytes())
			return err
		},
	}
}
