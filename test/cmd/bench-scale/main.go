// Command bench-scale measures the overlay with many nodes on a real etcd and a real kube-apiserver: the agent's start until all
// nodes are in the kernel, single changes, and bursts. It compares the growth with the same objects made by iproute2 and with the
// classic form without nexthop objects. Then it measures the throughput between two pods beside that of a VXLAN made by hand. With
// -ranges it measures addresses from a range that spans nodes, beside whereabouts. With -policies it measures network policies, beside
// kube-router.
//
//	unshare --net --mount --propagation private bin/bench-scale -cnibox bin/cnibox -out BENCHMARKS.md -svg docs/scale.svg
//
// It needs root, a private namespace, etcd, iproute2, and for -kube the programs in bin/kube, which make test-kube builds.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/test/internal/page"
)

// options are read from the command line.
type options struct {
	cnibox, out, svg    string
	ranges, whereabouts string
	reference           string
	policies            string
	kubeRouter          string
	peers, shape        int
	kube, quick         bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		stop()
		fmt.Fprintln(os.Stderr, "bench-scale:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	var o options
	f := flag.NewFlagSet("bench-scale", flag.ContinueOnError)
	f.StringVar(&o.cnibox, "cnibox", "bin/cnibox", "the cnibox `binary`")
	f.StringVar(&o.out, "out", "", "replace the block \"scale\" of this `file`")
	f.StringVar(&o.svg, "svg", "", "write the plot to this `file`")
	f.IntVar(&o.peers, "peers", 10000, "nodes of the main measurements")
	f.BoolVar(&o.kube, "kube", false, "measure on a kube-apiserver too")
	f.BoolVar(&o.quick, "quick", false, "leave the plot's other sizes out")
	f.StringVar(&o.ranges, "ranges", "", "measure only cluster-wide ranges, and replace the block \"ranges\" of this `file`")
	f.StringVar(&o.reference, "reference", "bin/peers", "the `directory` with the reference's macvlan")
	f.StringVar(&o.whereabouts, "whereabouts", "bin/kube", "the `directory` with whereabouts and its definitions")
	f.StringVar(&o.policies, "policies", "", "measure only network policies, and replace the block \"policies\" of this `file`")
	f.IntVar(&o.shape, "shape", 0, "with -policies, measure only this one of its `shapes`, without kube-router, and write no file")
	f.StringVar(&o.kubeRouter, "kube-router", "bin/kube/kube-router", "kube-router's `program`, measured too if it is there")
	if err := f.Parse(args); err != nil {
		return err
	}
	var err error
	o.cnibox, err = filepath.Abs(o.cnibox)
	if err != nil {
		return err
	}
	if err := prepare(ctx); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "bench-scale-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if o.ranges != "" {
		return benchRanges(ctx, o, dir)
	}
	if o.policies != "" {
		return benchPolicies(ctx, o, dir)
	}
	r, err := measure(ctx, o, dir)
	if err != nil {
		return err
	}
	text := r.markdown(o.svg)
	fmt.Print(text)
	if o.out != "" {
		if err := page.Replace(o.out, "scale", text); err != nil {
			return err
		}
	}
	if o.svg != "" {
		return os.WriteFile(o.svg, []byte(r.plot()), 0o644)
	}
	return nil
}

// sizes are the numbers of nodes in the plot.
func sizes() []int { return []int{100, 1000, 2500, 5000, 10000, 20000} }

func measure(ctx context.Context, o options, dir string) (*results, error) {
	r := &results{peers: o.peers}
	etcd, err := startEtcd(ctx, filepath.Join(dir, "etcd"))
	if err != nil {
		return nil, err
	}
	defer etcd.stop()
	all := []int{o.peers}
	if !o.quick {
		all = slices.Compact(slices.Sorted(slices.Values(append(sizes(), o.peers))))
	}
	for _, n := range all {
		note("%d nodes", n)
		if err := etcd.fill(ctx, n); err != nil {
			return nil, err
		}
		p := point{peers: n}
		a := &agent{binary: o.cnibox, dir: dir, flags: []string{"-etcd-endpoints", etcd.url}, peers: n}
		p.agent, err = a.startTimes(ctx, 3)
		if err != nil {
			return nil, err
		}
		p.floor, err = floor(ctx, dir, n)
		if err != nil {
			return nil, err
		}
		for classic, into := range map[bool]*seconds{false: &p.nexthops, true: &p.classic} {
			*into, err = bare(ctx, n, classic)
			if err != nil {
				return nil, err
			}
		}
		if n == o.peers {
			r.etcd, err = a.live(ctx, etcd)
			if err != nil {
				return nil, err
			}
			r.etcd.start, r.floor = p.agent, p.floor
		}
		r.points = append(r.points, p)
	}
	etcd.stop()
	r.rates, err = throughput(ctx, o.cnibox, dir)
	if err != nil {
		return nil, err
	}
	if o.kube {
		r.kube, r.fleet, err = onKube(ctx, o, dir)
		if err != nil {
			return nil, err
		}
	}
	return r, nil
}

// prepare configures the namespace as a host.
func prepare(ctx context.Context) error {
	for _, c := range []string{
		"ip link set lo up", "mount -t tmpfs tmpfs /run",
		"ip link add under0 type veth peer name under1", "ip addr add 172.16.0.1/12 dev under0", "ip link set under0 up", "ip link set under1 up",
	} {
		if err := command(ctx, c); err != nil {
			return errors.Join(err, errors.New("run it in a namespace of its own: unshare --net --mount --propagation private"))
		}
	}
	return nil
}

func note(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
