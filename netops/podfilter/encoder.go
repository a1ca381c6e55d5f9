package podfilter

import (
	"maps"
	"net/netip"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/podtable"
)

// encoder keeps the elements of pods and links, since few of them change at a time.
type encoder struct {
	pods  map[netip.Addr]encodedPod
	links map[string]encodedLink
}

// encodedPod has the elements of an address of a pod by their IDs, and encodedLink those of a link.
type encodedPod struct {
	pod      Pod
	elements map[string]*nft.Entry
}

type encodedLink struct {
	link     Link
	elements map[string]*nft.Entry
}

func newEncoder() encoder { return encoder{map[netip.Addr]encodedPod{}, map[string]encodedLink{}} }

// entries returns the elements of a Ruleset by their IDs, and those that an ADD adds itself. If two links have an element, it is that of the lesser
// label.
func (e *encoder) entries(r *Ruleset) (all, pending map[string]*nft.Entry, err error) {
	maps.DeleteFunc(e.pods, func(a netip.Addr, c encodedPod) bool { return r.Pods[a] != c.pod })
	maps.DeleteFunc(e.links, func(label string, c encodedLink) bool { l, has := r.links[label]; return !has || !c.link.Equal(&l) })
	all, pending = make(map[string]*nft.Entry, 8*len(e.links)), map[string]*nft.Entry{}
	for a, p := range r.Pods {
		c, has := e.pods[a]
		if !has {
			c = encodedPod{p, map[string]*nft.Entry{}}
			if err := encode(c.elements, podtable.Elements(a, &p)); err != nil {
				return nil, nil, err
			}
			e.pods[a] = c
		}
		maps.Copy(all, c.elements)
	}
	for a, p := range r.Pending {
		if err := encode(pending, podtable.Elements(a, &p)); err != nil {
			return nil, nil, err
		}
	}
	for label, l := range r.links {
		c, has := e.links[label]
		if !has {
			c = encodedLink{l, map[string]*nft.Entry{}}
			if err := encode(c.elements, podtable.LinkElements(&l)); err != nil {
				return nil, nil, err
			}
			e.links[label] = c
		}
		for key, n := range c.elements {
			if have := all[key]; have == nil || n.Label() < have.Label() {
				all[key] = n
			}
		}
	}
	if !r.hasPorts() { // there may be no table of bridges
		for _, some := range []map[string]*nft.Entry{all, pending} {
			maps.DeleteFunc(some, func(_ string, n *nft.Entry) bool { return n.Set.Table == podtable.BridgeTable() })
		}
	}
	return all, pending, nil
}

// encode adds elements to entries by their IDs.
func encode(to map[string]*nft.Entry, elements []*nft.Element) error {
	schema := podtable.Schema()
	for _, e := range elements {
		n, err := nft.EntryOf(schema, e)
		if err != nil {
			return err
		}
		to[n.ID()] = n
	}
	return nil
}
