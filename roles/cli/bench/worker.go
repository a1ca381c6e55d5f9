package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/sandbox"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/netlist"
)

// uplink is the interface of a worker's default route.
const uplink = "eth0"

// setup is what a worker needs first.
type setup struct {
	List       json.RawMessage
	Path       string
	Masters    []string
	Containers int
	// Env is the environment of the plugins.
	Env []string
}

// request is a setup, or Count calls of a verb, at most Parallel at a time.
type request struct {
	Setup                  *setup     `json:",omitempty"`
	Verb                   roles.Verb `json:",omitempty"`
	First, Count, Parallel int
}

// reply has the time of all calls.
type reply struct {
	Took  time.Duration
	Error string `json:",omitempty"`
}

// worker makes the calls of one side.
type worker struct {
	net     *netops.Net
	plugins roles.Delegator
	list    *netlist.List
	calls   []netlist.Call
}

// Serve is the process of a worker. It reads requests until in ends.
func Serve(ctx context.Context, in io.Reader, out io.Writer, plugins roles.Delegator) error {
	w := &worker{net: netops.New(netops.Options{}), plugins: plugins}
	defer w.net.Close() //nolint:errcheck // the process ends
	requests, replies := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var r request
		err := requests.Decode(&r)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var a reply
		if r.Setup != nil {
			err = w.prepare(ctx, r.Setup)
		} else {
			a.Took, err = w.run(ctx, &r)
		}
		if err != nil {
			a.Error = err.Error()
		}
		if err := replies.Encode(a); err != nil {
			return err
		}
	}
}

// prepare makes the node and its containers.
func (w *worker) prepare(ctx context.Context, s *setup) error {
	path := filepath.SplitList(s.Path)
	if err := sandbox.Enter(path); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	list, err := netlist.Parse(s.List, "0.1.0")
	if err != nil {
		return err
	}
	w.list = list
	if err := w.makeUplinks(ctx, s.Masters); err != nil {
		return err
	}
	env := slices.DeleteFunc(s.Env, func(kv string) bool { return strings.HasPrefix(kv, "CNI") })
	for i := range s.Containers {
		id := "bench-" + strconv.Itoa(i)
		ns, err := w.net.MakeNamespace(id)
		if err != nil {
			return err
		}
		if err := ns.Close(); err != nil {
			return err
		}
		w.calls = append(w.calls, netlist.Call{Request: &roles.Request{ContainerID: id, Netns: ns.Path(), IfName: "eth0", Path: path, Env: env}})
	}
	return nil
}

// makeUplinks makes the interfaces that plugins expect on a node. They lead nowhere.
func (w *worker) makeUplinks(ctx context.Context, masters []string) error {
	var spec netops.Spec
	spec.Add(&netops.Link{In: netops.Host, Name: "lo", Up: true})
	for i, name := range slices.Compact(slices.Sorted(slices.Values(append(masters, uplink)))) {
		peer := "wire" + strconv.Itoa(i)
		spec.Add(
			&netops.Link{In: netops.Host, Name: name, Kind: "veth", Up: true, Peer: &netops.Peer{In: netops.Host, Name: peer}},
			&netops.Link{In: netops.Host, Name: peer, Up: true},
		)
	}
	spec.Add(
		&netops.Addr{In: netops.Host, Link: uplink, Address: netip.MustParsePrefix("192.0.2.1/24")},
		&netops.Route{In: netops.Host, Link: uplink, Dst: netip.MustParsePrefix("0.0.0.0/0"), Via: netip.MustParseAddr("192.0.2.254")},
	)
	return w.net.Ensure(ctx, spec, nil)
}

// run makes the calls of a request.
func (w *worker) run(ctx context.Context, r *request) (time.Duration, error) {
	if w.list == nil || r.First < 0 || r.Count < 1 || r.Parallel < 1 || r.First+r.Count > len(w.calls) {
		return 0, errors.New("invalid request")
	}
	errs := make([]error, r.Count)
	var next sync.Mutex
	todo := 0
	var group sync.WaitGroup
	start := time.Now()
	for range r.Parallel {
		group.Go(func() {
			for {
				next.Lock()
				i := todo
				todo++
				next.Unlock()
				if i >= r.Count {
					return
				}
				errs[i] = w.call(ctx, r.Verb, &w.calls[r.First+i])
			}
		})
	}
	group.Wait()
	took := time.Since(start)
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		return took, fmt.Errorf("%s of container %d: %w", r.Verb, r.First+i+1, errs[i])
	}
	return took, nil
}

// call runs one verb of the whole list.
func (w *worker) call(ctx context.Context, verb roles.Verb, c *netlist.Call) (err error) {
	switch verb {
	case roles.Add:
		c.Result = nil
		c.Result, err = w.list.Add(ctx, w.plugins, *c)
	case roles.Check:
		err = w.list.Check(ctx, w.plugins, *c)
	case roles.Del:
		err = w.list.Del(ctx, w.plugins, *c)
	default:
		err = fmt.Errorf("invalid verb %q", verb)
	}
	return err
}
