package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"time"
)

// warmRounds are run before the counted ones: the first call makes bridge, tables and state files and fills caches.
const warmRounds = 3

// measure runs the sections of a job one after the other.
func measure(ctx context.Context, j job) (*results, error) {
	res := &results{Rounds: j.Rounds}
	for _, name := range j.Sections {
		fmt.Fprintf(os.Stderr, "bench: %s ...", name)
		start := time.Now()
		if err := measureSection(ctx, j, name, res); err != nil {
			fmt.Fprintln(os.Stderr)
			return nil, fmt.Errorf("section %s: %w", name, err)
		}
		fmt.Fprintf(os.Stderr, " %s\n", time.Since(start).Round(100*time.Millisecond))
	}
	return res, nil
}

func measureSection(ctx context.Context, j job, name string, res *results) error {
	var err error
	switch name {
	case sectionVersion:
		res.Version, err = timeVersion(ctx, j, "bridge", versionFactor*j.Rounds)
	case sectionBridge:
		res.Bridge, err = measureBridge(ctx, j, 0, "")
	case sectionNFT:
		if _, lookErr := exec.LookPath("nft"); lookErr != nil {
			res.Notes = append(res.Notes, "the reference's nftables backend was not measured: it needs the nft program")
			return nil
		}
		res.NFT, err = measureBridge(ctx, j, 1, "nftables")
	case sectionParallel:
		res.Parallel, err = measureParallel(ctx, j)
	case sectionChain:
		res.Chain, res.Fused, err = measureChain(ctx, j)
	case sectionPublished:
		res.Published, err = measurePublished(ctx, j)
	case sectionNetworks:
		res.Networks, err = measureNetworks(ctx, j)
	case sectionAzure:
		res.Azure, err = measureAzure(ctx, j)
	case sectionInterfaces:
		res.Interfaces, err = measureInterfaces(ctx, j)
	case sectionRoles:
		res.Roles, err = measureRoles(ctx, j)
	case sectionStartup:
		res.Startup, err = measureStartup(ctx, j)
	case sectionAlloc:
		err = measureAlloc(ctx, j, res)
	case sectionDHCP:
		if _, lookErr := exec.LookPath("dnsmasq"); lookErr != nil {
			res.Notes = append(res.Notes, "dhcp was not measured: it needs dnsmasq")
			return nil
		}
		res.DHCP, err = measureDHCP(ctx, j)
	case sectionStorm:
		res.Storm, err = measureStorm(ctx, j)
	}
	return err
}

// versionFactor multiplies the rounds of VERSION: the call is short and the difference small.
const versionFactor = 5

// measureBridge runs ADD, CHECK and DEL for one container of each side, alternating verb by verb, then for the next one. At any
// time a side has at most one container, which is the reference's best case, since its rules grow with every container.
func measureBridge(ctx context.Context, j job, index int, backend string) (_ *bridgeResult, err error) {
	nets := bridgeNetworks(j.Sides, index, backend)
	if err := requireIptables(backend); err != nil {
		return nil, err
	}
	rounds := warmRounds + j.Rounds
	containers, err := newContainers(fmt.Sprintf("one%d", index), 2*rounds)
	if err != nil {
		return nil, err
	}
	defer func() {
		if dropErr := dropContainers(containers); err == nil {
			err = dropErr
		}
	}()
	var add, check, del timings
	for round := range rounds {
		results := [2][]byte{}
		for _, verb := range []struct {
			name string
			to   *timings
		}{{"ADD", &add}, {"CHECK", &check}, {"DEL", &del}} {
			for _, i := range turns(round) {
				a, err := nets[i].run(ctx, verb.name, containers[2*round+i], results[i])
				if err != nil {
					return nil, err
				}
				if verb.name == "ADD" {
					results[i] = a.Stdout
				}
				if round >= warmRounds {
					verb.to[i] = append(verb.to[i], a.Took)
				}
			}
		}
	}
	return &bridgeResult{Add: add.compared(), Check: check.compared(), Del: del.compared()}, nil
}

// requireIptables fails early if the reference's default backend would silently be another one.
func requireIptables(backend string) error {
	if backend != "" {
		return nil
	}
	if _, err := exec.LookPath("iptables"); err != nil {
		return fmt.Errorf("find the reference's default backend: %w", err)
	}
	return nil
}

// run executes the plugin bridge of this network once and checks that an ADD returns an address.
func (n network) run(ctx context.Context, verb string, c container, prevResult []byte) (answer, error) {
	conf, err := n.bridgeConf(prevResult)
	if err != nil {
		return answer{}, err
	}
	a, err := n.Side.do(ctx, call{Plugin: "bridge", Verb: verb, Container: c, Conf: conf})
	if err != nil {
		return a, err
	}
	if verb == "ADD" {
		_, err = a.address()
	}
	return a, err
}
