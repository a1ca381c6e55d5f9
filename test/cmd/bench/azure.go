package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
)

// azureAtMost bounds the cost of a pod with addresses of the cloud, as a multiple of a pod on our bridge with host-local addresses.
const azureAtMost = 1.3

// azureWaits bounds the time that a call waits for one of our locks when there are many calls.
const azureWaits = 50 * time.Millisecond

// azureUplink is the node's interface on the cloud's network, and azureBridge the bridge that replaces it.
const azureUplink, azureBridge = "benchup", "benchaz0"

// azureResult compares a pod of azure-vnet in mode bridge, with addresses of the cloud that are already known, with a pod of bridge
// and host-local. Both are cnibox.
type azureResult struct {
	Add     azureVerb `json:"add"`
	Del     azureVerb `json:"del"`
	AtATime int       `json:"atATime"`
}

// azureVerb is one verb: one pod at a time, and many.
type azureVerb struct {
	Azure  stat `json:"azure"`
	Bridge stat `json:"bridge"`
	Many   stat `json:"many"`
	// Wait is the longest wait for a lock in all parallel calls.
	Wait time.Duration `json:"wait"`
}

// measureAzure runs ADD and DEL for one pod of each kind at a time; then for many of azure-vnet at once.
func measureAzure(ctx context.Context, j job) (_ *azureResult, err error) {
	rounds := warmRounds + j.Rounds
	// No address is used twice, so that no cool-down is measured. Azure assigns at most 256 addresses to a network interface.
	conf, err := azureNode(ctx, rounds+j.Containers)
	if err != nil {
		return nil, err
	}
	defer func() {
		err = errors.Join(err, program(context.WithoutCancel(ctx), "ip", "link", "del", azureUplink))
	}()
	plain := bridgeNetworks(j.Sides, 6, "")[0]
	pod := conf.run(j.Sides.Ours)
	containers, err := newContainers("azure", 2*rounds+j.Containers)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dropContainers(containers)) }()
	var took [2]timings
	for round := range rounds {
		results := [2][]byte{}
		for v, verb := range []string{"ADD", "DEL"} {
			for _, i := range turns(round) {
				each := []func(context.Context, string, container, []byte) (answer, error){pod, plain.run}[i]
				a, err := each(ctx, verb, containers[2*round+i], results[i])
				if err != nil {
					return nil, err
				}
				results[i] = a.Stdout
				if round >= warmRounds {
					took[v][i] = append(took[v][i], a.Took)
				}
			}
		}
	}
	res := &azureResult{AtATime: j.Parallel}
	var wait longestWait
	azure := stormer{network{Side: j.Sides.Ours, Name: "benchazure", Bridge: azureBridge}, wait.of(conf.run(j.Sides.Ours, "CNIBOX_LOG=debug"))}
	results := make([][]byte, j.Containers)
	for v, to := range []*azureVerb{&res.Add, &res.Del} {
		st, err := azure.storm(ctx, []string{"ADD", "DEL"}[v], containers[2*rounds:], j.Parallel, results)
		if err != nil {
			return nil, err
		}
		*to = azureVerb{Azure: newStat(took[v][0]), Bridge: newStat(took[v][1]), Many: newStat(st.Took), Wait: wait.take()}
	}
	return res, nil
}

// longestWait finds the longest wait for a lock in the debug logs of calls.
type longestWait struct{ ns atomic.Int64 }

// of adds the debug log to calls.
func (w *longestWait) of(each func(context.Context, string, container, []byte) (answer, error)) func(context.Context, string, container, []byte) (answer, error) {
	return func(ctx context.Context, verb string, pod container, prevResult []byte) (answer, error) {
		a, err := each(ctx, verb, pod, prevResult)
		if err != nil {
			return a, err
		}
		d, err := longestOf(a.Stderr)
		for was := w.ns.Load(); int64(d) > was && !w.ns.CompareAndSwap(was, int64(d)); was = w.ns.Load() {
		}
		return a, err
	}
}

// take returns the longest wait since its last call.
func (w *longestWait) take() time.Duration { return time.Duration(w.ns.Swap(0)) }

// longestOf returns the longest wait in a log.
func longestOf(log []byte) (time.Duration, error) {
	var longest time.Duration
	for line := range strings.Lines(string(log)) {
		_, took, ok := strings.Cut(line, " took=")
		if !ok || !strings.Contains(line, `msg="waited for a lock"`) {
			continue
		}
		d, err := time.ParseDuration(strings.TrimSpace(took))
		if err != nil {
			return 0, fmt.Errorf("read the log: %w", err)
		}
		longest = max(longest, d)
	}
	return longest, nil
}

// azureConf is the configuration of the article about AKS, with a file in place of the cloud.
type azureConf struct{ file string }

// azureNode makes the node's interface and the file with the cloud's addresses, of which this number is for pods.
func azureNode(ctx context.Context, pool int) (azureConf, error) {
	for _, args := range [][]string{
		{"link", "add", azureUplink, "up", "type", "veth", "peer", "name", azureUplink + "2"},
		{"link", "set", azureUplink + "2", "up"},
		{"addr", "add", "10.246.0.4/16", "dev", azureUplink},
	} {
		if err := program(ctx, append([]string{"ip"}, args...)...); err != nil {
			return azureConf{}, err
		}
	}
	mac, err := os.ReadFile(filepath.Join("/sys/class/net", azureUplink, "address"))
	if err != nil {
		return azureConf{}, fmt.Errorf("read the uplink's address: %w", err)
	}
	type address struct {
		Address   string
		IsPrimary bool
	}
	addresses := []address{{"10.246.0.4", true}}
	for i := range pool {
		addresses = append(addresses, address{fmt.Sprintf("10.246.%d.%d", 1+i/250, 1+i%250), false})
	}
	doc, err := encodeConf(map[string]any{"Interfaces": []any{map[string]any{
		"MacAddress": strings.ToUpper(strings.ReplaceAll(string(bytes.TrimSpace(mac)), ":", "")), "IsPrimary": true,
		"IPSubnets": []any{map[string]any{"Prefix": "10.246.0.0/16", "IPAddresses": addresses}},
	}}})
	if err != nil {
		return azureConf{}, err
	}
	c := azureConf{filepath.Join(dataDir, "interfaces.json")}
	if err := os.WriteFile(c.file, doc, 0o600); err != nil {
		return azureConf{}, fmt.Errorf("write the cloud's addresses: %w", err)
	}
	return c, nil
}

// run runs a verb for a pod.
func (c azureConf) run(s side, env ...string) func(context.Context, string, container, []byte) (answer, error) {
	return func(ctx context.Context, verb string, pod container, prevResult []byte) (answer, error) {
		conf := map[string]any{
			"cniVersion": "1.0.0", "name": "benchazure", "type": "azure-vnet", "mode": "bridge", "bridge": azureBridge,
			"ipam": map[string]any{"type": "azure-vnet-ipam", "environment": "fileIpam", "file": c.file, "queryInterval": "1h"},
		}
		if prevResult != nil {
			conf["prevResult"] = json.RawMessage(prevResult)
		}
		raw, err := encodeConf(conf)
		if err != nil {
			return answer{}, err
		}
		a, err := s.do(ctx, call{Plugin: "azure-vnet", Verb: verb, Container: pod, Conf: raw}, env...)
		if err == nil && verb == "ADD" {
			_, err = a.address()
		}
		return a, err
	}
}

// summary returns the rows of a pod with addresses of the cloud.
func (r *azureResult) summary() []row {
	var rows []row
	for _, v := range []struct {
		name   string
		target float64
		azureVerb
	}{{"ADD", azureAtMost, r.Add}, {"DEL", 0, r.Del}} {
		cost := ratio(float64(v.Azure.P50), float64(v.Bridge.P50))
		one := row{What: v.name + " azure-vnet (azure-vnet-ipam), p50", Ours: ms(v.Azure.P50), Ratio: fmt.Sprintf("%.2f × our bridge's (host-local)", cost), Key: cost}
		if v.target > 0 {
			one.Target, one.Met = fmt.Sprintf("≤ %.1f ×", v.target), cost > 0 && cost <= v.target
		}
		many := row{
			What: fmt.Sprintf("%s azure-vnet, %d at a time, p50", v.name, r.AtATime), Ours: ms(v.Many.P50), Ratio: "longest wait for a lock " + ms(v.Wait),
			Target: "≤ " + ms(azureWaits), Met: v.Wait <= azureWaits, Key: float64(v.Wait),
		}
		rows = append(rows, one, many)
	}
	return rows
}
