package cli

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/see/advice"
	"github.com/cnibox/cnibox/roles/see/topo"
	"github.com/cnibox/cnibox/roles/see/view"
	"github.com/cnibox/cnibox/store"
)

func (p *Process) topoCommand() *cli.Command {
	return &cli.Command{
		Name:  "topo",
		Usage: "draw the networks of this node",
		Description: `Draws the host's devices, the containers behind each, their addresses and counters, and
marks what "cnibox diff" finds, and what a failed call left. The page of --format html
needs no network.

examples:
  cnibox topo
  cnibox topo --format html > node.html
  cnibox topo --format dot | dot -Tpdf > node.pdf`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "format", Value: "text", Usage: "text, dot, svg, html or json"},
		},
		Action: p.onNode(func(c *cli.Context, h *roles.Host) error {
			format := c.String("format")
			if c.Bool("json") {
				format = "json"
			}
			draw, known := map[string]func(*topo.Topology) string{
				"text": func(t *topo.Topology) string {
					s := p.style(c)
					return t.Text(func(text string) string { return s.paint(red, text) })
				},
				"dot": (*topo.Topology).DOT, "svg": (*topo.Topology).SVG, "html": (*topo.Topology).HTML, "json": nil,
			}[format]
			if !known {
				return advice.Usagef("cnibox help topo", "--format %q: want text, dot, svg, html or json", format)
			}
			t, err := p.readTopology(c.Context, h)
			if err == nil {
				_, _, err = policyTables(c.Context, h, t)
			}
			if err != nil {
				return err
			}
			if draw == nil {
				return writeJSON(p.Stdout, t)
			}
			if format == "text" && len(t.Attachments) == 0 {
				fmt.Fprintln(p.Stderr, "cnibox: topo: no container is attached by cnibox here; the nodes of a lab have pictures of their own: cnibox lab run NODE topo")
			}
			_, err = fmt.Fprint(p.Stdout, draw(t))
			return err
		}),
	}
}

// readTopology reads the host's devices and the node's attachments.
func (p *Process) readTopology(ctx context.Context, h *roles.Host) (*topo.Topology, error) {
	problems, err := p.problems(ctx, h)
	if err != nil {
		return nil, err
	}
	t, err := topo.Read(ctx, h, view.NewHost(ctx, h.Net), problems)
	if err != nil {
		return nil, err
	}
	for i := range t.Attachments {
		a := &t.Attachments[i]
		a.Pod, a.Netns = printable(a.Pod), printable(a.Netns)
	}
	return t, nil
}

// problems returns what `cnibox diff` finds, by attachment.
func (p *Process) problems(ctx context.Context, h *roles.Host) (map[store.Key][]string, error) {
	all, err := p.auditAll(ctx, h, "")
	if err != nil {
		return nil, err
	}
	found := map[store.Key][]string{}
	for _, one := range all {
		for _, d := range one.found {
			found[one.Key] = append(found[one.Key], fmt.Sprintf("%s: want %s, have %s: %s", d.Object, d.Want, d.Have, d.Fix))
		}
	}
	return found, nil
}
