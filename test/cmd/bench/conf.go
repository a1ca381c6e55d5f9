package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
)

// network is one network of one side: its own bridge and subnet.
type network struct {
	Side    side
	Name    string
	Bridge  string
	Subnet  string
	Backend string // ipMasqBackend; empty leaves the key out
}

// bridgeNetworks returns the networks of both sides for the index-th bridge section.
func bridgeNetworks(sides pair, index int, backend string) [2]network {
	var nets [2]network
	for i, s := range []side{sides.Ours, sides.Peer} {
		nets[i] = network{
			Side:    s,
			Name:    fmt.Sprintf("bench%d%s", index, s.Name),
			Bridge:  fmt.Sprintf("bench%d%s", index, s.Name),
			Subnet:  fmt.Sprintf("10.%d.0.0/16", 200+2*index+i),
			Backend: backend,
		}
	}
	return nets
}

// bridgeConf returns the configuration of bridge + host-local + ipMasq, with prevResult for CHECK if there is one.
func (n network) bridgeConf(prevResult []byte) ([]byte, error) {
	conf := map[string]any{
		"cniVersion": "1.0.0",
		"name":       n.Name,
		"type":       "bridge",
		"bridge":     n.Bridge,
		"isGateway":  true,
		"ipMasq":     true,
		"ipam":       n.ipam(),
	}
	if n.Backend != "" {
		conf["ipMasqBackend"] = n.Backend
	}
	if prevResult != nil {
		conf["prevResult"] = json.RawMessage(prevResult)
	}
	return encodeConf(conf)
}

// ipamConf returns the configuration with which host-local is executed directly.
func (n network) ipamConf() ([]byte, error) {
	return encodeConf(map[string]any{"cniVersion": "1.0.0", "name": n.Name, "type": "bridge", "ipam": n.ipam()})
}

func (n network) ipam() map[string]any {
	return map[string]any{
		"type":    "host-local",
		"dataDir": n.leaseDir(),
		"ranges":  []any{[]any{map[string]any{"subnet": n.Subnet}}},
		"routes":  []any{map[string]any{"dst": "0.0.0.0/0"}},
	}
}

// leaseDir returns the host-local data directory of this side.
func (n network) leaseDir() string { return filepath.Join(dataDir, n.Side.Name) }

func encodeConf(conf map[string]any) ([]byte, error) {
	data, err := json.Marshal(conf)
	if err != nil {
		return nil, fmt.Errorf("encode configuration: %w", err)
	}
	return data, nil
}
