package main

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
)

// waitingRounds is the number of rounds where the reference waits a second or more for duplicate address detection in every ADD.
const waitingRounds = 10

// interfaceMaster is the parent of the macvlan interfaces.
const interfaceMaster = "benchmaster"

// The address families; the reference waits with the second one.
func interfaceFamilies() []interfaceFamily {
	return []interfaceFamily{
		{Name: "IPv4", Subnets: map[string]string{"ours": "10.230.0.0/16", "peer": "10.231.0.0/16"}, Target: 4},
		{Name: "IPv6", Subnets: map[string]string{"ours": "fd00:230::/64", "peer": "fd00:231::/64"}, Target: 20, Waits: true},
	}
}

type interfaceFamily struct {
	Name    string
	Subnets map[string]string // by side: containers of both are on one wire at a time
	Target  float64           // times as fast an ADD has to be
	Waits   bool
}

// interfaceResult is one kind of interface with host-local addresses of one family, one container at a time.
type interfaceResult struct {
	Plugin string   `json:"plugin"`
	With   string   `json:"with,omitempty"` // what is switched on, behind the plugin's name
	Family string   `json:"family"`
	Target float64  `json:"target"`
	Add    compared `json:"add"`
	Del    compared `json:"del"`
}

// measureInterfaces measures the interface plugins beside bridge.
func measureInterfaces(ctx context.Context, j job) (_ []interfaceResult, err error) {
	for _, args := range [][]string{
		{"ip", "link", "add", interfaceMaster, "up", "type", "veth", "peer", "name", interfaceMaster + "2"},
		{"ip", "link", "set", interfaceMaster + "2", "up"},
	} {
		if err := program(ctx, args...); err != nil {
			return nil, err
		}
	}
	defer func() {
		err = errors.Join(err, program(context.WithoutCancel(ctx), "ip", "link", "del", interfaceMaster))
	}()
	var list []interfaceResult
	for _, plugin := range []string{"ptp", "macvlan", "tap"} {
		for _, family := range interfaceFamilies() {
			r, err := measureInterface(ctx, j, plugin, family)
			if err != nil {
				return nil, err
			}
			list = append(list, *r)
		}
	}
	return list, nil
}

func measureInterface(ctx context.Context, j job, plugin string, family interfaceFamily) (_ *interfaceResult, err error) {
	warm, counted := warmRounds, j.Rounds
	if family.Waits {
		warm, counted = 1, min(counted, waitingRounds)
	}
	rounds := warm + counted
	containers, err := newContainers(plugin+family.Name, 2*rounds)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dropContainers(containers)) }()
	sides := []side{j.Sides.Ours, j.Sides.Peer}
	var add, del timings
	for round := range rounds {
		results := [2][]byte{}
		for _, verb := range []struct {
			name string
			to   *timings
		}{{"ADD", &add}, {"DEL", &del}} {
			for _, i := range turns(round) {
				conf, err := sides[i].interfaceConf(plugin, family, results[i])
				if err != nil {
					return nil, err
				}
				a, err := sides[i].do(ctx, call{Plugin: plugin, Verb: verb.name, Container: containers[2*round+i], Conf: conf})
				if err != nil {
					return nil, err
				}
				if verb.name == "ADD" {
					results[i] = a.Stdout
					if _, err := a.address(); err != nil {
						return nil, err
					}
				}
				if round >= warm {
					verb.to[i] = append(verb.to[i], a.Took)
				}
			}
		}
	}
	r := &interfaceResult{Plugin: plugin, Family: family.Name, Target: family.Target, Add: add.compared(), Del: del.compared()}
	if plugin == "ptp" {
		r.With = " + ipMasq"
	}
	return r, nil
}

// interfaceConf returns a plugin's configuration.
func (s side) interfaceConf(plugin string, family interfaceFamily, prevResult []byte) ([]byte, error) {
	conf := map[string]any{
		"cniVersion": "1.0.0",
		"name":       "bench" + plugin + family.Name + s.Name,
		"type":       plugin,
		"ipam": map[string]any{
			"type":    "host-local",
			"dataDir": filepath.Join(dataDir, s.Name),
			"ranges":  []any{[]any{map[string]any{"subnet": family.Subnets[s.Name]}}},
		},
	}
	switch plugin {
	case "ptp":
		conf["ipMasq"] = true // without it a container reaches no more than the host
	case "macvlan":
		conf["master"] = interfaceMaster
	}
	if prevResult != nil {
		conf["prevResult"] = json.RawMessage(prevResult)
	}
	return encodeConf(conf)
}
