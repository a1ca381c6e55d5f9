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
		{Name: "IPv4", Subnets: map[string]string{"ours": "10.230.0.0/16", "peer": "10.231.0.0/16"}},
		{Name: "IPv6", Subnets: map[string]string{"ours": "fd00:230::/64", "peer": "fd00:231::/64"}, Waits: true},
	}
}

type interfaceFamily struct {
	Name    string
	Subnets map[string]string // by side: containers of both are on one wire at a time
	Waits   bool
}

// interfaceKind is a plugin with an option.
type interfaceKind struct {
	Plugin string
	With   string // the option, behind the plugin's name
	Target float64
}

// withMasq is the option of ptp that lets a container reach more than the host.
const withMasq = " + ipMasq"

// waitingAtLeast is how many times as fast an ADD has to be if the reference waits.
const waitingAtLeast = 20

// interfaceKinds lists the plugins, and how many times as fast an ADD has to be if the reference does not wait.
func interfaceKinds() []interfaceKind {
	return []interfaceKind{
		{Plugin: "ptp", With: withMasq, Target: 4}, {Plugin: "ptp", Target: 2.2}, {Plugin: "macvlan", Target: 2.2}, {Plugin: "tap", Target: 2.2},
	}
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
	for _, kind := range interfaceKinds() {
		for _, family := range interfaceFamilies() {
			r, err := measureInterface(ctx, j, kind, family)
			if err != nil {
				return nil, err
			}
			list = append(list, *r)
		}
	}
	return list, nil
}

func measureInterface(ctx context.Context, j job, kind interfaceKind, family interfaceFamily) (_ *interfaceResult, err error) {
	warm, counted := warmRounds, j.Rounds
	if family.Waits {
		warm, counted = 1, min(counted, waitingRounds)
	}
	rounds := warm + counted
	containers, err := newContainers(kind.name()+family.Name, 2*rounds)
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
				conf, err := sides[i].interfaceConf(kind, family, results[i])
				if err != nil {
					return nil, err
				}
				a, err := sides[i].do(ctx, call{Plugin: kind.Plugin, Verb: verb.name, Container: containers[2*round+i], Conf: conf})
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
	r := &interfaceResult{
		Plugin: kind.Plugin, With: kind.With, Family: family.Name, Target: kind.Target, Add: add.compared(), Del: del.compared(),
	}
	if family.Waits {
		r.Target = waitingAtLeast
	}
	return r, nil
}

// name is short and different for each kind.
func (k interfaceKind) name() string {
	if k.With == "" {
		return k.Plugin
	}
	return k.Plugin + "masq"
}

// interfaceConf returns a plugin's configuration.
func (s side) interfaceConf(kind interfaceKind, family interfaceFamily, prevResult []byte) ([]byte, error) {
	conf := map[string]any{
		"cniVersion": "1.0.0",
		"name":       "bench" + kind.name() + family.Name + s.Name,
		"type":       kind.Plugin,
		"ipam": map[string]any{
			"type":    "host-local",
			"dataDir": filepath.Join(dataDir, s.Name),
			"ranges":  []any{[]any{map[string]any{"subnet": family.Subnets[s.Name]}}},
		},
	}
	if kind.With == withMasq {
		conf["ipMasq"] = true
	}
	if kind.Plugin == "macvlan" {
		conf["master"] = interfaceMaster
	}
	if prevResult != nil {
		conf["prevResult"] = json.RawMessage(prevResult)
	}
	return encodeConf(conf)
}
