package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/netpolicy/control"
	"github.com/cnibox/cnibox/roles/see/advice"
)

// denials prints the connections that network policies denied, as the agent has logged them, and new ones until ctx ends. pod is the name of a
// pod at one of the ends, or "".
func (p *Process) denials(ctx context.Context, h *roles.Host, pod string, asJSON bool) error {
	ticker := time.NewTicker(dropInterval)
	defer ticker.Stop()
	last := int64(0)
	for {
		answer, err := control.DeniedAfter(context.WithoutCancel(ctx), h.Store, last)
		switch {
		case err != nil:
			return advice.With(err, "cnibox agent status")
		case !answer.IsOn:
			return fmt.Errorf("the agent of this node does not log denied packets: start it with -policy -policy-log, or run 'cnibox drops'")
		case len(answer.Denied) == 0 && last > 0:
			if answer, err = control.DeniedAfter(context.WithoutCancel(ctx), h.Store, 0); err == nil && len(answer.Denied) > 0 && answer.Denied[len(answer.Denied)-1].Number < last {
				last = 0 // the agent was started again
				continue
			}
		}
		for i := range answer.Denied {
			line := &answer.Denied[i]
			last = line.Number
			if pod != "" && pod != line.ClientPod && pod != line.ServerPod {
				continue
			}
			if asJSON {
				err = json.NewEncoder(p.Stdout).Encode(line)
			} else {
				_, err = fmt.Fprintln(p.Stdout, deniedText(line))
			}
			if err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// deniedText returns the line for people.
func deniedText(d *control.Denied) string {
	words := []string{
		d.Time.Format("15:04:05.000"), strings.ToLower(d.Protocol), d.Client.String(), ">", d.Target(), "(" + dash(d.ClientPod), ">", dash(d.ServerPod) + ")", d.Why,
	}
	if d.Packets != 1 {
		words = append(words, fmt.Sprintf("(%d packets)", d.Packets))
	}
	return printable(strings.Join(words, " "))
}
