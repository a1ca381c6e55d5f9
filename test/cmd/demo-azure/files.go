package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/test/internal/stage"
)

// wiring shows one pod in azure-vnet.json.
func (d *demo) wiring() error {
	stage.Say("/var/run/azure-vnet.json: how the node is wired, one of its pods in full")
	return abridge("/run/azure-vnet.json", 1, "Network", "ExternalInterfaces", "eth0", "Networks", "azure", "Endpoints")
}

// pool shows some addresses in azure-vnet-ipam.json.
func (d *demo) pool() error {
	stage.Say("/var/run/azure-vnet-ipam.json: the addresses, and which are in use")
	return abridge("/run/azure-vnet-ipam.json", 6, "IPAM", "AddressSpaces", "local", "Pools", "10.240.0.0/16", "Addresses")
}

// abridge prints the first entries of the object at a path in a file, as they are in the file.
func abridge(file string, entries int, path ...string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	for i, key := range path {
		var at map[string]json.RawMessage
		if err := json.Unmarshal(b, &at); err != nil || at[key] == nil {
			return fmt.Errorf("%s has no %s: %w", file, strings.Join(path[:i+1], "."), err)
		}
		b = at[key]
	}
	var at map[string]json.RawMessage
	if err := json.Unmarshal(b, &at); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	keys := slices.Sorted(maps.Keys(at))
	fmt.Printf("    %s\n", strings.Join(path, "."))
	for _, key := range keys[:min(entries, len(keys))] {
		var out bytes.Buffer
		if err := json.Indent(&out, at[key], "      ", "  "); err != nil {
			return err
		}
		fmt.Printf("      %q: %s\n", key, &out)
	}
	fmt.Printf("      … and %d more\n", max(0, len(keys)-entries))
	return nil
}
