package policy

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles/netpolicy"
	"github.com/cnibox/cnibox/store"
)

// stackedKinds are the kinds of links that take packets from a bridge before the node does, or instead of it.
func stackedKinds() []string { return []string{"macvlan", "macvtap", "ipvlan", "ipvtap", "vlan"} }

// stackedHere returns what is stacked on links of the host, by their names. A VLAN in the host's namespace is the node's own.
func stackedHere(all []netops.LinkInfo) map[string][]string {
	names, stacked := map[int]string{}, map[string][]string{}
	for i := range all {
		names[all[i].Index] = all[i].Name
	}
	for i := range all {
		l := &all[i]
		if parent := names[l.PeerIndex]; parent != "" && !l.PeerElsewhere && l.Kind != "vlan" && slices.Contains(stackedKinds(), l.Kind) {
			stacked[parent] = append(stacked[parent], l.Kind+" "+l.Name)
		}
	}
	return stacked
}

// stackedBy returns the link of the host on which a container's interface is stacked, and what it is for people.
func stackedBy(a *store.Attachment) (master, title string) {
	for i := range a.Parts {
		if !slices.Contains(stackedKinds(), a.Parts[i].Role) {
			continue
		}
		var changes []struct {
			Do struct {
				Link netops.Link `json:"link"`
			} `json:"do"`
		}
		if json.Unmarshal(a.Parts[i].Changes, &changes) != nil {
			continue
		}
		for _, c := range changes {
			if l := &c.Do.Link; l.Parent != "" && l.ParentIn == netops.Host {
				return l.Parent, l.Kind + " " + a.IfName + " of container " + a.ContainerID
			}
		}
	}
	return "", ""
}

// besides returns an error that names what is stacked on bridges of pods that policies select. What these send reaches it, and no chain receives
// it: the kernel takes the packets from the bridge before.
func (l *attachments) besides(t *netpolicy.Table) error {
	var texts []string
	for label, p := range l.recorded {
		if p.Bridge == "" || t.Selected()[label] == "" {
			continue
		}
		for _, title := range l.named.stacked[p.Bridge] {
			if text := title + " on bridge " + p.Bridge; !slices.Contains(texts, text) {
				texts = append(texts, text)
			}
		}
	}
	if len(texts) == 0 {
		return nil
	}
	slices.Sort(texts)
	return fmt.Errorf("network policies select pods on bridges with other devices on them, which may receive what the policies forbid these pods to send: %s: give them another master, or make them ports of the bridge",
		strings.Join(texts, ", "))
}
