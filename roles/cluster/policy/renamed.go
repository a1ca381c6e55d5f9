package policy

import (
	"context"
	"errors"
	"fmt"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles/call/attachment"
)

// podLinks are the links of pods on the host as they are now, by the labels in their aliases, and the bridges by name. A record has the names
// that they had at ADD.
type podLinks struct {
	byLabel map[string]*netops.LinkInfo
	bridges map[string]bool
	// ungrouped are the indexes of those that ADD made without policies: they lack the group by which the rules know a link that was renamed.
	ungrouped []int
	// stacked has the names of what is stacked on links, by their names.
	stacked map[string][]string
	// gateways are those of the bridges.
	gateways map[string]*gateway
}

// readLinks reads the links of pods.
func (l *attachments) readLinks(ctx context.Context) (*podLinks, error) {
	all, err := l.host.Net.Links(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("read the links of pods: %w", err)
	}
	found := &podLinks{byLabel: map[string]*netops.LinkInfo{}, bridges: map[string]bool{}, stacked: stackedHere(all), gateways: gatewaysOf(all)}
	for i := range all {
		link := &all[i]
		if link.Kind == "bridge" {
			found.bridges[link.Name] = true
		}
		alias, ok := attachment.ParseAlias(link.Alias)
		if !ok || !link.IsPairEnd() {
			continue
		}
		found.byLabel[alias.Label] = link
	}
	return found, nil
}

// at returns a pod with the present names of its link and of its bridge.
func (l *podLinks) at(label string, p *podRequest) *podRequest {
	link := l.byLabel[label]
	if p.Port == "" || link == nil {
		return p
	}
	if link.Group == 0 {
		l.ungrouped = append(l.ungrouped, link.Index)
	}
	bridge := ""
	if l.bridges[link.Master] {
		bridge = link.Master
	}
	if p.Port == link.Name && p.Bridge == bridge {
		return p
	}
	now := *p
	now.Port, now.Bridge = link.Name, bridge
	return &now
}

// group puts links into the group of pods' links. Their names must be in the sets by then.
func (l *podLinks) group(ctx context.Context, n *netops.Net) error {
	var errs []error
	for _, index := range l.ungrouped {
		if err := n.GroupPodLink(ctx, index); err != nil && !errors.Is(err, netops.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	l.ungrouped = nil
	return errors.Join(errs...)
}
