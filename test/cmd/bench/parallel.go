package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
)

// stormer runs a verb for one container of a network.
type stormer struct {
	network
	each func(ctx context.Context, verb string, c container, prevResult []byte) (answer, error)
}

// measureParallel measures many containers at once through the bridge.
func measureParallel(ctx context.Context, j job) (*parallelResult, error) {
	if err := requireIptables(""); err != nil {
		return nil, err
	}
	var add, del [2]storm
	for i, n := range bridgeNetworks(j.Sides, 2, "") {
		var err error
		add[i], del[i], err = measureStorms(ctx, j, stormer{n, n.run})
		if err != nil {
			return nil, err
		}
	}
	return newParallelResult(j, add, del), nil
}

// measureStorms adds all containers of one side, many at once, and then deletes them in the same way.
func measureStorms(ctx context.Context, j job, n stormer) (add, del storm, err error) {
	all, err := newContainers("par"+n.Name, warmRounds+j.Containers)
	if err != nil {
		return add, del, err
	}
	defer func() { err = errors.Join(err, dropContainers(all)) }()
	if err := n.warm(ctx, all[:warmRounds]); err != nil {
		return add, del, err
	}
	results := make([][]byte, j.Containers)
	for _, verb := range []struct {
		name  string
		to    *storm
		ports int
	}{{"ADD", &add, j.Containers}, {"DEL", &del, 0}} {
		*verb.to, err = n.storm(ctx, verb.name, all[warmRounds:], j.Parallel, results)
		if err != nil {
			return add, del, err
		}
		if err := n.expectPorts(verb.ports); err != nil {
			return add, del, err
		}
	}
	return add, del, nil
}

// newParallelResult compares the storms of two sides.
func newParallelResult(j job, add, del [2]storm) *parallelResult {
	return &parallelResult{
		Containers: j.Containers, AtATime: j.Parallel,
		Add: rates{add[0].Rate, add[1].Rate}, Del: rates{del[0].Rate, del[1].Rate},
		AddCalls: timings{add[0].Took, add[1].Took}.compared(), DelCalls: timings{del[0].Took, del[1].Took}.compared(),
	}
}

// warm makes the shared objects of a network with a few containers, and removes these.
func (n stormer) warm(ctx context.Context, containers []container) error {
	for _, c := range containers {
		a, err := n.each(ctx, "ADD", c, nil)
		if err != nil {
			return err
		}
		if _, err := n.each(ctx, "DEL", c, a.Stdout); err != nil {
			return err
		}
	}
	return nil
}

// expectPorts checks that the timed work was done: a bridge has one port for each container, and none afterwards.
func (n network) expectPorts(want int) error {
	bridge, err := netlink.LinkByName(n.Bridge)
	if err != nil {
		return fmt.Errorf("find %s: %w", n.Bridge, err)
	}
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("list ports of %s: %w", n.Bridge, err)
	}
	ports := 0
	for _, l := range links {
		if l.Attrs().MasterIndex == bridge.Attrs().Index {
			ports++
		}
	}
	if ports != want {
		return fmt.Errorf("bridge %s of %s has %d ports, not %d", n.Bridge, n.Side.Name, ports, want)
	}
	return nil
}

// storm is one verb for many containers at once.
type storm struct {
	Rate float64 // calls per second of wall time
	Took []time.Duration
}

// storm runs the verb for all containers with this number of workers. It stores the results of ADD in results, from which DEL takes
// its prevResult. The first error ends it.
func (n stormer) storm(ctx context.Context, verb string, containers []container, workers int, results [][]byte) (storm, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	st := storm{Took: make([]time.Duration, len(containers))}
	next := make(chan int)
	var wg sync.WaitGroup
	start := time.Now()
	for range workers {
		wg.Go(func() {
			for i := range next {
				a, err := n.each(ctx, verb, containers[i], results[i])
				if err != nil {
					cancel(err)
					continue
				}
				st.Took[i] = a.Took
				if verb == "ADD" {
					results[i] = a.Stdout
				}
			}
		})
	}
	for i := range containers {
		if ctx.Err() != nil {
			break
		}
		next <- i
	}
	close(next)
	wg.Wait()
	st.Rate = ratio(float64(len(containers)), time.Since(start).Seconds())
	return st, context.Cause(ctx)
}
