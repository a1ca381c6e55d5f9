package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
)

// networksAtMost bounds the cost of a pod with several networks, as a multiple of a pod with one.
const networksAtMost = 1.6

// manyNetworks is the number of networks of the pod with several.
const manyNetworks = 3

// networksResult compares a pod with one network and a pod with several, both through the meta plugin.
type networksResult struct {
	Add networksVerb `json:"add"`
	Del networksVerb `json:"del"`
	// Multus reports whether it was measured; if not, the peer's figures are zero.
	Multus bool `json:"multus"`
}

// networksVerb is one verb.
type networksVerb struct {
	One  compared `json:"one"`
	Many compared `json:"many"`
}

// multiPod is one side's pod with a number of networks of its own.
type multiPod struct {
	side  side
	count int
	// section is the number of the pod's subnets.
	section int
}

// multiPods are the pods of a side.
func multiPods(s side, index int) [2]multiPod {
	return [2]multiPod{{s, 1, 2 * index}, {s, manyNetworks, 2*index + 1}}
}

// conf has the networks as delegates: no annotation and no API server is needed.
func (p multiPod) conf(prevResult []byte) ([]byte, error) {
	var delegates []any
	for i := range p.count {
		n := network{
			Side: p.side, Name: fmt.Sprintf("multi%d%c%s", p.section, 'a'+i, p.side.Name), Bridge: fmt.Sprintf("multi%d%c", p.section, 'a'+i),
			Subnet: fmt.Sprintf("10.%d.0.0/16", 10+10*p.section+i),
		}
		plugin := map[string]any{"type": "bridge", "bridge": n.Bridge, "ipam": n.ipam()}
		if i == 0 {
			plugin["isGateway"], plugin["ipMasq"] = true, true
		} else {
			delete(plugin["ipam"].(map[string]any), "routes") // a pod has one default route
		}
		delegates = append(delegates, map[string]any{"cniVersion": "1.0.0", "name": n.Name, "plugins": []any{plugin}})
	}
	conf := map[string]any{
		"cniVersion": "1.0.0", "name": fmt.Sprintf("multi%d%s", p.section, p.side.Name), "type": "multus",
		"binDir": p.side.Dir, "cniDir": filepath.Join(dataDir, "multus"), "delegates": delegates,
	}
	if prevResult != nil {
		conf["prevResult"] = json.RawMessage(prevResult)
	}
	return encodeConf(conf)
}

func (p multiPod) run(ctx context.Context, verb string, c container, prevResult []byte) (answer, error) {
	conf, err := p.conf(prevResult)
	if err != nil {
		return answer{}, err
	}
	a, err := p.side.do(ctx, call{Plugin: "multus", Verb: verb, Container: c, Conf: conf})
	if err == nil && verb == "ADD" {
		_, err = a.address()
	}
	return a, err
}

// measureNetworks runs ADD and DEL for one pod of each kind and side, then for the next.
func measureNetworks(ctx context.Context, j job) (_ *networksResult, err error) {
	if err := requireIptables(""); err != nil {
		return nil, err
	}
	sides := []side{j.Sides.Ours}
	if j.Multus != nil {
		sides = append(sides, *j.Multus)
	}
	var pods []multiPod
	for i, s := range sides {
		both := multiPods(s, i)
		pods = append(pods, both[:]...)
	}
	rounds := warmRounds + j.Rounds
	containers, err := newContainers("multi", len(pods)*rounds)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dropContainers(containers)) }()
	// The first index is the verb, the second the number of networks.
	var took [2][2]timings
	for round := range rounds {
		results := make([][]byte, len(pods))
		for v, verb := range []string{"ADD", "DEL"} {
			for k := range pods {
				k = (k + round) % len(pods) // the first pod changes every round
				a, err := pods[k].run(ctx, verb, containers[len(pods)*round+k], results[k])
				if err != nil {
					return nil, err
				}
				results[k] = a.Stdout
				if round >= warmRounds {
					took[v][k%2][k/2] = append(took[v][k%2][k/2], a.Took)
				}
			}
		}
	}
	return &networksResult{
		Add:    networksVerb{One: took[0][0].compared(), Many: took[0][1].compared()},
		Del:    networksVerb{One: took[1][0].compared(), Many: took[1][1].compared()},
		Multus: j.Multus != nil,
	}, nil
}

// summary returns the rows of a pod with several networks.
func (r *networksResult) summary() []row {
	var rows []row
	for _, v := range []struct {
		name string
		networksVerb
	}{{"ADD", r.Add}, {"DEL", r.Del}} {
		many := speedRow(fmt.Sprintf("%s, %d networks (multi, Multus), p50", v.name, manyNetworks), v.Many, notSlower)
		if !r.Multus {
			many.Peer, many.Ratio, many.Target = "", "", ""
		}
		rows = append(rows, many)
		rows = append(rows, v.share(v.name))
	}
	return rows
}

// share returns the cost of several networks as a multiple of one.
func (v networksVerb) share(verb string) row {
	ours := ratio(float64(v.Many.Ours.P50), float64(v.One.Ours.P50))
	r := row{
		What: verb + ", 1 network (multi, Multus), p50", Ours: ms(v.One.Ours.P50), Ratio: fmt.Sprintf("%.2f × for %d", ours, manyNetworks),
		Target: fmt.Sprintf("≤ %.1f ×", networksAtMost), Met: ours > 0 && ours <= networksAtMost, Key: ours,
	}
	if v.One.Peer.N > 0 {
		r.Peer = ms(v.One.Peer.P50)
	}
	return r
}
