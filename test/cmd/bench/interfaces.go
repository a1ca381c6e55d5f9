package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// waitingRounds is the number of rounds where the reference waits a second or more for duplicate address detection in every ADD.
const waitingRounds = 10

// forwarding is the setting of the host that ADD of an IPv6 address turns on.
const forwarding = "/proc/sys/net/ipv6/conf/all/forwarding"

// interfaceMaster is the parent of the macvlan interfaces.
const interfaceMaster = "benchmaster"

// The address families of a kind; the reference waits with IPv6. On a host that forwards IPv6, the kernel gives the host's end of a
// pair more addresses, which a DEL removes.
func (k interfaceKind) families() []interfaceFamily {
	ipv4 := interfaceFamily{Name: familyIPv4, Subnets: map[string]string{"ours": "10.230.0.0/16", "peer": "10.231.0.0/16"}}
	switch k.name() {
	case loopback:
		return []interfaceFamily{{}}
	case "ptp": // without ipMasq
		forwards := ipv4
		forwards.Name, forwards.Forwards = "IPv4 on a host that forwards IPv6", true
		return []interfaceFamily{ipv4, forwards, familyIPv6()}
	}
	return []interfaceFamily{ipv4, familyIPv6()}
}

// loopback has neither addresses nor families.
const loopback = "loopback"

const familyIPv4 = "IPv4"

func familyIPv6() interfaceFamily {
	return interfaceFamily{Name: "IPv6", Subnets: map[string]string{"ours": "fd00:230::/64", "peer": "fd00:231::/64"}, Waits: true}
}

type interfaceFamily struct {
	Name     string
	Subnets  map[string]string // by side: containers of both are on one wire at a time
	Waits    bool
	Forwards bool // whether the host forwards IPv6 from the start
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
		{Plugin: "ptp", With: withMasq, Target: 4},
		{Plugin: "ptp", Target: 2.2},
		{Plugin: "macvlan", Target: 2.2},
		{Plugin: "tap", Target: 2.2},
		{Plugin: loopback, Target: notSlower},
	}
}

// interfaceResult is one kind of interface with host-local addresses of one family, one container at a time.
type interfaceResult struct {
	Plugin string   `json:"plugin"`
	With   string   `json:"with,omitempty"` // what is switched on, behind the plugin's name
	Family string   `json:"family"`
	Target float64  `json:"target"`
	Add    compared `json:"add"`
	Check  compared `json:"check"`
	Del    compared `json:"del"`
}

// name names the measurement in tables.
func (r interfaceResult) name() string {
	if r.Family == "" {
		return r.Plugin + r.With
	}
	return r.Plugin + r.With + ", " + r.Family
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
		for _, family := range kind.families() {
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
	value := []byte("0")
	if family.Forwards {
		value = []byte("1")
	}
	if err := os.WriteFile(forwarding, value, 0); err != nil {
		return nil, fmt.Errorf("set IPv6 forwarding: %w", err)
	}
	containers, err := newContainers(kind.name()+strings.ReplaceAll(family.Name, " ", ""), 2*rounds)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dropContainers(containers)) }()
	sides := []side{j.Sides.Ours, j.Sides.Peer}
	var add, check, del timings
	for round := range rounds {
		results := [2][]byte{}
		for _, verb := range []struct {
			name string
			to   *timings
		}{{"ADD", &add}, {"CHECK", &check}, {"DEL", &del}} {
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
		Plugin: kind.Plugin, With: kind.With, Family: family.Name, Target: kind.Target, Add: add.compared(), Check: check.compared(), Del: del.compared(),
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
		"name":       "bench" + kind.name() + strings.ReplaceAll(family.Name, " ", "") + s.Name,
		"type":       kind.Plugin,
	}
	if family.Subnets != nil {
		conf["ipam"] = map[string]any{
			"type":    "host-local",
			"dataDir": filepath.Join(dataDir, s.Name),
			"ranges":  []any{[]any{map[string]any{"subnet": family.Subnets[s.Name]}}},
		}
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
