package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
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
	nets := bridgeNetworks(j.Sides, 2, "")
	return measureStorms(ctx, j, "par", [2]stormer{{nets[0], nets[0].run}, {nets[1], nets[1].run}})
}

// measureStorms adds all containers of one side, many at once, then those of the other side, and deletes them in the same way.
func measureStorms(ctx context.Context, j job, prefix string, nets [2]stormer) (_ *parallelResult, err error) {
	var sets [2][]container
	for i, n := range nets {
		sets[i], err = newContainers(prefix+n.Side.Name, warmRounds+j.Containers)
		if err != nil {
			return nil, err
		}
	}
	defer func() {
		for _, set := range sets {
			if dropErr := dropContainers(set); err == nil {
				err = dropErr
			}
		}
	}()
	for i, n := range nets {
		if err := n.warm(ctx, sets[i][:warmRounds]); err != nil {
			return nil, err
		}
	}
	res := &parallelResult{Containers: j.Containers, AtATime: j.Parallel}
	var add, del [2]storm
	results := [2][][]byte{make([][]byte, j.Containers), make([][]byte, j.Containers)}
	for i, n := range nets {
		add[i], err = n.storm(ctx, "ADD", sets[i][warmRounds:], j.Parallel, results[i])
		if err != nil {
			return nil, err
		}
		if err := n.expectPorts(j.Containers); err != nil {
			return nil, err
		}
	}
	for i, n := range nets {
		del[i], err = n.storm(ctx, "DEL", sets[i][warmRounds:], j.Parallel, results[i])
		if err != nil {
			return nil, err
		}
		if err := n.expectPorts(0); err != nil {
			return nil, err
		}
	}
	res.Add, res.Del = rates{add[0].Rate, add[1].Rate}, rates{del[0].Rate, del[1].Rate}
	res.AddCalls, res.DelCalls = timings{add[0].Took, add[1].Took}.compared(), timings{del[0].Took, del[1].Took}.compared()
	return res, nil
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
	ports, err := os.ReadDir(filepath.Join("/sys/class/net", n.Bridge, "brif"))
	if err != nil {
		return fmt.Errorf("list ports of %s: %w", n.Bridge, err)
	}
	if len(ports) != want {
		return fmt.Errorf("bridge %s of %s has %d ports, not %d", n.Bridge, n.Side.Name, len(ports), want)
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
