package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The targets for the list that podman and nerdctl write, against the reference in the same run.
const (
	chainAddAtLeast         = 6.0
	chainDelAtLeast         = 5.0
	chainParallelAddAtLeast = 8.0
	chainParallelDelAtLeast = 7.0
	// If our side runs the list as a fused list, in one process.
	fusedAddAtLeast = 14.0
	fusedDelAtLeast = 9.0
)

// firstPort is the host port of the first container; each container has its own.
const firstPort = 20000

// chainResult has one container at a time, and many, through bridge + portmap + firewall + tuning with one published port each.
type chainResult struct {
	Add      compared        `json:"add"`
	Check    compared        `json:"check"`
	Del      compared        `json:"del"`
	Parallel *parallelResult `json:"parallel"`
}

// chain is one network of one side with plugins behind the bridge, as podman and nerdctl write them.
type chain struct {
	network
	// fused has one plugin run the list.
	fused bool
}

// chainPlugins are the plugins behind the bridge.
func chainPlugins() []string { return []string{"portmap", "firewall", "tuning"} }

// chainNetworks returns the networks of both sides.
func chainNetworks(sides pair, index int) [2]chain {
	nets := bridgeNetworks(sides, index, "")
	return [2]chain{{network: nets[0]}, {network: nets[1]}}
}

// ports are a container's published ports: Count ports from First on.
type ports struct{ First, Count int }

// portOf returns one port for each container, from the number at the end of its ID.
func portOf(c container) ports {
	n, _ := strconv.Atoi(c.ID[strings.LastIndexByte(c.ID, '-')+1:])
	return ports{firstPort + n, 1}
}

func (p ports) mappings() []any {
	var list []any
	for i := range p.Count {
		list = append(list, map[string]any{"hostPort": p.First + i, "containerPort": 80, "protocol": "tcp"})
	}
	return list
}

// run runs the whole list for one container, in reverse for DEL. The time is that of all calls.
func (n chain) run(ctx context.Context, verb string, c container, prevResult []byte) (answer, error) {
	return n.publish(ctx, verb, c, prevResult, portOf(c))
}

// publish is run with the given ports.
func (n chain) publish(ctx context.Context, verb string, c container, result []byte, p ports) (total answer, err error) {
	if n.fused {
		conf, err := n.fusedConf(result, p)
		if err != nil {
			return total, err
		}
		return n.Side.do(ctx, call{Plugin: "chain", Verb: verb, Container: c, Conf: conf})
	}
	calls := make([]func() (answer, error), 0, 4)
	calls = append(calls, func() (answer, error) {
		prev := result
		if verb == "ADD" {
			prev = nil
		}
		return n.network.run(ctx, verb, c, prev)
	})
	for _, plugin := range chainPlugins() {
		calls = append(calls, func() (answer, error) {
			conf, err := n.pluginConf(plugin, result, p)
			if err != nil {
				return answer{}, err
			}
			return n.Side.do(ctx, call{Plugin: plugin, Verb: verb, Container: c, Conf: conf})
		})
	}
	for i := range calls {
		if verb == "DEL" {
			i = len(calls) - 1 - i
		}
		a, err := calls[i]()
		if err != nil {
			return total, err
		}
		total.Took += a.Took
		if verb == "ADD" {
			result = a.Stdout
		}
	}
	total.Stdout = result
	return total, nil
}

// fusedConf is the configuration of the whole list.
func (n chain) fusedConf(prevResult []byte, p ports) ([]byte, error) {
	bridge, err := n.bridgeConf(nil)
	if err != nil {
		return nil, err
	}
	plugins := []any{json.RawMessage(bridge)}
	for _, plugin := range chainPlugins() {
		conf := map[string]any{"type": plugin}
		if plugin == "portmap" {
			conf["capabilities"] = map[string]bool{"portMappings": true}
		}
		plugins = append(plugins, conf)
	}
	conf := map[string]any{
		"cniVersion": "1.0.0", "name": n.Name, "type": "chain", "plugins": plugins,
		"capabilities":  map[string]bool{"portMappings": true},
		"runtimeConfig": map[string]any{"portMappings": p.mappings()},
	}
	if prevResult != nil {
		conf["prevResult"] = json.RawMessage(prevResult)
	}
	return encodeConf(conf)
}

// pluginConf is the configuration of a plugin behind the bridge.
func (n chain) pluginConf(plugin string, prevResult []byte, p ports) ([]byte, error) {
	conf := map[string]any{"cniVersion": "1.0.0", "name": n.Name, "type": plugin, "prevResult": json.RawMessage(prevResult)}
	if plugin == "portmap" {
		conf["capabilities"] = map[string]bool{"portMappings": true}
		conf["runtimeConfig"] = map[string]any{"portMappings": p.mappings()}
	}
	return encodeConf(conf)
}

// chainRivals are cnibox with the list, cnibox with the fused list, and the reference. Each has a network of its own.
func chainRivals(sides pair, list, fused int) [3]chain {
	nets, whole := chainNetworks(sides, list), chainNetworks(sides, fused)[0]
	whole.fused = true
	return [3]chain{nets[0], whole, nets[1]}
}

// measureChain runs the list for one container at a time, and then for many. Both results have the same calls of the reference.
func measureChain(ctx context.Context, j job) (list, fused *chainResult, err error) {
	if err := requireIptables(""); err != nil {
		return nil, nil, err
	}
	rivals, rounds := chainRivals(j.Sides, 3, 7), warmRounds+j.Rounds
	containers, err := newContainers("chain", len(rivals)*rounds)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, dropContainers(containers)) }()
	var took [3][3][]time.Duration // by verb and rival
	for round := range rounds {
		var results [3][]byte
		for v, verb := range []string{"ADD", "CHECK", "DEL"} {
			for k := range rivals {
				k = (k + round) % len(rivals) // the first one changes every round
				a, err := rivals[k].run(ctx, verb, containers[len(rivals)*round+k], results[k])
				if err != nil {
					return nil, nil, err
				}
				if verb == "ADD" {
					results[k] = a.Stdout
				}
				if round >= warmRounds {
					took[v][k] = append(took[v][k], a.Took)
				}
			}
		}
	}
	var add, del [3]storm
	for k, n := range chainRivals(j.Sides, 4, 8) {
		add[k], del[k], err = measureStorms(ctx, j, stormer{n.network, n.run})
		if err != nil {
			return nil, nil, err
		}
	}
	result := func(k int) *chainResult {
		verb := func(v int) compared { return timings{took[v][k], took[v][2]}.compared() }
		return &chainResult{
			Add: verb(0), Check: verb(1), Del: verb(2), Parallel: newParallelResult(j, [2]storm{add[k], add[2]}, [2]storm{del[k], del[2]}),
		}
	}
	return result(0), result(1), nil
}

// summary returns the rows of a list. short is its name in the rows with many calls.
func (r *chainResult) summary(list, short string, addAtLeast, delAtLeast float64) []row {
	return []row{
		speedRow("ADD "+list+", p50", r.Add, addAtLeast),
		speedRow("CHECK "+list+", p50", r.Check, notSlower),
		speedRow("DEL "+list+", p50", r.Del, delAtLeast),
		rateRow(fmt.Sprintf("ADD of %s, %d at a time", short, r.Parallel.AtATime), r.Parallel.Add, chainParallelAddAtLeast),
		rateRow(fmt.Sprintf("DEL of %s, %d at a time", short, r.Parallel.AtATime), r.Parallel.Del, chainParallelDelAtLeast),
	}
}
