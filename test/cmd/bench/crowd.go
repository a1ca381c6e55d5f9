package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// stormResult is ADD of bridge + host-local + ipMasq while a host fills with containers, and with many calls at once.
type stormResult struct {
	Present []presentResult `json:"present"`
	AtOnce  []atOnceResult  `json:"atOnce"`
}

// presentResult is one call at a time on a host that has containers.
type presentResult struct {
	Containers int      `json:"containers"`
	Add        compared `json:"add"`
	// Empty is cnibox on a bridge of the same host that has no other container.
	Empty stat `json:"empty"`
}

// atOnceResult is a number of calls at a time on a host without other containers.
type atOnceResult struct {
	AtATime int   `json:"atATime"`
	Add     rates `json:"add"`
}

// presentCounts are the numbers of containers that are present while another one comes and goes.
func presentCounts() []int { return []int{1, 10, 50, 100, 200, 500, 1000, 2000} }

// atOnceCounts are the numbers of calls at a time.
func atOnceCounts() []int { return []int{1, 2, 4, 8, 16, 32, 64} }

const (
	// presentRounds is the number of counted calls of the reference beside each number of containers; cnibox has oursEachRound times
	// as many. The reference needs up to a second for a call.
	presentRounds = 20
	oursEachRound = 5
	// peerFillTime bounds the time in which the host of the reference is filled, since each of its ADDs reads all rules. What it
	// does not reach is not measured.
	peerFillTime = 100 * time.Second
	// fillContainers is the number of containers after which that time is checked.
	fillContainers = 100
	// bridgeContainers is the number of containers on one bridge, a multiple of fillContainers. Linux allows 1,023 ports.
	bridgeContainers = 1000
	// emptyBridge is the number of a bridge that stays empty.
	emptyBridge = 9
)

// atOnceContainers are the numbers of containers that both sides add with each number of workers.
func atOnceContainers() [2]int { return [2]int{128, 64} }

func measureStorm(ctx context.Context, j job) (*stormResult, error) {
	if err := requireIptables(""); err != nil {
		return nil, err
	}
	atOnce, err := measureAtOnce(ctx, j)
	if err != nil {
		return nil, err
	}
	present, err := measurePresent(ctx, j)
	return &stormResult{Present: present, AtOnce: atOnce}, err
}

// measureAtOnce adds and deletes the same number of containers by each number of workers, one side after the other.
func measureAtOnce(ctx context.Context, j job) ([]atOnceResult, error) {
	nets := bridgeNetworks(j.Sides, 0, "")
	var list []atOnceResult
	for k, workers := range atOnceCounts() {
		fmt.Fprintf(os.Stderr, " %d at a time", workers)
		j.Parallel = workers
		var rate [2]float64
		for _, i := range turns(k) {
			j.Containers = atOnceContainers()[i]
			add, _, err := measureStorms(ctx, j, stormer{nets[i], nets[i].run})
			if err != nil {
				return nil, fmt.Errorf("%d at a time: %w", workers, err)
			}
			rate[i] = add.Rate
		}
		list = append(list, atOnceResult{AtATime: workers, Add: rates{rate[0], rate[1]}})
	}
	return list, nil
}

// measurePresent fills a host of each side step by step. Beside each number of containers, further ones come and go.
func measurePresent(ctx context.Context, j job) (_ []presentResult, err error) {
	var crowds [2]*crowd
	for i, s := range []side{j.Sides.Ours, j.Sides.Peer} {
		crowds[i], err = newCrowd(s, []time.Duration{0, peerFillTime}[i])
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, crowds[i].drop()) }()
	}
	var list []presentResult
	for k, n := range presentCounts() {
		fmt.Fprintf(os.Stderr, " %d containers", n)
		for _, i := range turns(k) {
			if err := crowds[i].fill(ctx, n, j.Parallel); err != nil {
				return nil, fmt.Errorf("%d containers of %s: %w", n, crowds[i].side.Name, err)
			}
		}
		var add timings
		var empty []time.Duration
		for round := range 1 + presentRounds { // the first is not counted
			for _, i := range turns(round) {
				if len(crowds[i].present) < n {
					continue
				}
				took, err := crowds[i].comeAndGo(ctx, (n-1)/bridgeContainers, []int{oursEachRound, 1}[i])
				if err != nil {
					return nil, fmt.Errorf("%d containers of %s: %w", n, crowds[i].side.Name, err)
				}
				if round > 0 {
					add[i] = append(add[i], took...)
				}
			}
			took, err := crowds[0].comeAndGo(ctx, emptyBridge, 1)
			if err != nil {
				return nil, fmt.Errorf("%d containers: %w", n, err)
			}
			if round > 0 {
				empty = append(empty, took...)
			}
		}
		list = append(list, presentResult{Containers: n, Add: add.compared(), Empty: newStat(empty)})
	}
	return list, nil
}

// crowd is the host of one side, a network namespace of its own, and the containers on it.
type crowd struct {
	side    side
	host    container
	present []container
	// passed is the number of containers that came and went.
	passed int
	// fillTime bounds the time of all calls of fill; 0 is no bound.
	fillTime, filled time.Duration
}

func newCrowd(s side, fillTime time.Duration) (*crowd, error) {
	made, err := newContainers("host"+s.Name, 1)
	if err != nil {
		return nil, err
	}
	c := &crowd{side: s, host: made[0], fillTime: fillTime}
	if err := inside(c.host.Netns, furnishHost); err != nil {
		return nil, errors.Join(err, c.drop())
	}
	return c, nil
}

// network returns the network of a bridge.
func (c *crowd) network(bridge int) stormer {
	name := fmt.Sprintf("crowd%d%s", bridge, c.side.Name)
	n := network{Side: c.side, Name: name, Bridge: name, Subnet: fmt.Sprintf("10.%d.0.0/16", 200+bridge)}
	return stormer{n, func(ctx context.Context, verb string, on container, prevResult []byte) (a answer, err error) {
		err = inside(c.host.Netns, func() error {
			a, err = n.run(ctx, verb, on, prevResult)
			return err
		})
		return a, err
	}}
}

// fill adds containers until there are as many as wanted, or the time is over. They stay.
func (c *crowd) fill(ctx context.Context, want, workers int) error {
	for len(c.present) < want && (c.fillTime == 0 || c.filled < c.fillTime) {
		onBridge := len(c.present) % bridgeContainers
		n := c.network(len(c.present) / bridgeContainers)
		more := min(want-len(c.present), fillContainers-onBridge%fillContainers)
		made, err := newContainers(fmt.Sprintf("%s%d", n.Name, onBridge), more)
		if err != nil {
			return err
		}
		c.present = append(c.present, made...)
		start := time.Now()
		if _, err := n.storm(ctx, "ADD", made, workers, make([][]byte, more)); err != nil {
			return err
		}
		c.filled += time.Since(start)
		if err := inside(c.host.Netns, func() error { return n.expectPorts(onBridge + more) }); err != nil {
			return err
		}
	}
	return nil
}

// comeAndGo adds and deletes containers one by one on a bridge, and returns the times of ADD.
func (c *crowd) comeAndGo(ctx context.Context, bridge, times int) (took []time.Duration, err error) {
	n := c.network(bridge)
	made, err := newContainers(fmt.Sprintf("guest%s%d", c.side.Name, c.passed), times)
	if err != nil {
		return nil, err
	}
	c.passed += times
	defer func() { err = errors.Join(err, dropContainers(made)) }()
	for _, guest := range made {
		a, err := n.each(ctx, "ADD", guest, nil)
		if err != nil {
			return nil, err
		}
		took = append(took, a.Took)
		if _, err := n.each(ctx, "DEL", guest, a.Stdout); err != nil {
			return nil, err
		}
	}
	return took, nil
}

// drop removes the containers and the host without DEL, as a machine that is switched off.
func (c *crowd) drop() error { return dropContainers(append(c.present, c.host)) }
