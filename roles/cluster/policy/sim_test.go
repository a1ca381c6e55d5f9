package policy

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops/podfilter"
	"github.com/cnibox/cnibox/roles/netpolicy"
	"github.com/cnibox/cnibox/roles/netpolicy/choice"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
	"github.com/cnibox/cnibox/test/sim"
)

// simWorld is a cluster whose nodes follow an API server through rest.Client. Each request waits for a step of the world, and each
// step waits for what the client makes of it, so that the order of all follows the seed. There is no kernel: what would be enforced
// is netpolicy's explanation of the compiled rules.
type simWorld struct {
	t       *testing.T
	server  *httptest.Server
	nodes   []*simNode
	version int
	// objects are those of the server by collection and key, and events all changes. The server has forgotten those up to compacted.
	objects   simObjects
	events    []simEvent
	compacted int
	// breaks is true if connections break. The client pauses then.
	breaks bool
	made   int
	err    error
}

// simNode is a node with an agent.
type simNode struct {
	w      *simWorld
	name   string
	lives  int
	source *Kube
	keeper *Keeper
	stop   func()
	// arrived has the requests, puts the changes that the source passes on, and watches the last request by collection.
	arrived chan *simRequest
	puts    chan func(*netpolicy.Table)
	watches map[string]*simRequest
	// received are the objects that the node was told, after the first list of the collections in listed.
	received simObjects
	listed   map[string]bool
	// saved is what the agent saved last, and of which objects.
	saved      choice.Saved
	savedOf    simObjects
	containers []*simContainer
}

// simContainer is a container of a pod. Its ADD is answered, and recorded later.
type simContainer struct {
	podRequest
	request *request
	// fetched is what the server answered when the agent asked for the pod.
	fetched            *simObject
	answered, recorded bool
}

func newSimWorld(t *testing.T, n int, r *rand.Rand) *simWorld {
	w := &simWorld{t: t, objects: newSimObjects(), breaks: r.IntN(10) == 0}
	w.server = httptest.NewServer(http.HandlerFunc(w.serve))
	for i := range min(n, 3) {
		w.nodes = append(w.nodes, &simNode{w: w, name: fmt.Sprint("node-", i)})
	}
	for range 6 {
		w.change(r)
	}
	for _, n := range w.nodes {
		n.start()
	}
	return w
}

// start starts the agent.
func (n *simNode) start() {
	n.lives++
	life := fmt.Sprint(n.name, "_", n.lives)
	log := slog.New(slog.DiscardHandler)
	if os.Getenv("SEED") != "" {
		log = slog.New(slog.NewTextHandler(n.w.t.Output(), nil)).With("of", life)
	}
	client, err := rest.Open(rest.Server(n.w.server.URL + "/" + life))
	if err != nil {
		n.w.t.Fatal(err)
	}
	n.source = &Kube{Client: client, Node: n.name, Log: log}
	n.keeper = &Keeper{Options: Options{Source: n.source}, table: netpolicy.NewTable(), local: newAttachments(nil, false)}
	n.keeper.table.OnNode = n.source.OnNode
	n.arrived, n.puts, n.watches = make(chan *simRequest), make(chan func(*netpolicy.Table)), map[string]*simRequest{}
	n.received, n.listed = newSimObjects(), map[string]bool{}
	n.containers = slices.DeleteFunc(n.containers, func(c *simContainer) bool { return !c.answered })
	for _, c := range n.containers {
		n.record(c)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended, puts := make(chan struct{}), n.puts
	go func() {
		defer close(ended)
		n.source.Run(ctx, func(f func(*netpolicy.Table)) {
			select {
			case puts <- f:
			case <-ctx.Done():
			}
		})
	}()
	n.stop = func() { cancel(); <-ended; client.Close() }
	for len(n.watches) < 3 {
		n.arrive()
	}
}

// settle does what the agent does after each change.
func (n *simNode) settle() {
	if !n.keeper.synced {
		return
	}
	n.keeper.local.putInto(n.keeper.table)
	if !n.keeper.table.IsSaved {
		text, err := json.Marshal(n.keeper.table.Save(false))
		n.saved = choice.Saved{}
		if err == nil {
			err = json.Unmarshal(text, &n.saved)
		}
		if err != nil {
			n.w.t.Fatal(err)
		}
	}
	n.savedOf = simObjects{}
	for collection, of := range n.view() {
		n.savedOf[collection] = maps.Clone(of)
	}
}

// view returns the objects that the node may know: those that it was told, and pods for whose ADD it asked.
func (n *simNode) view() simObjects {
	v := maps.Clone(n.received)
	v[simPods] = maps.Clone(v[simPods])
	for _, c := range n.containers {
		key := c.Namespace + "/" + c.Name
		have := n.keeper.table.Pod(c.Namespace, c.Name)
		if c.fetched != nil && c.answered && c.fetched.uid == c.UID && have != nil && have.UID == c.UID && v[simPods][key].uid != c.UID {
			v[simPods][key] = *c.fetched
		}
	}
	return v
}

// add begins an ADD of a pod of the node. kubelet may not know that it was deleted.
func (n *simNode) add(r *rand.Rand) string {
	var pods []simObject
	for _, e := range n.w.events[max(0, len(n.w.events)-40):] {
		if e.collection == simPods && e.node == n.name && e.kind == "ADDED" {
			pods = append(pods, e.simObject)
		}
	}
	free := slices.DeleteFunc(simAddresses(), func(a netip.Addr) bool {
		return slices.ContainsFunc(n.w.nodes, func(n *simNode) bool {
			return slices.ContainsFunc(n.containers, func(c *simContainer) bool { return c.Addresses[0] == a })
		})
	})
	if len(pods) == 0 || len(free) == 0 {
		return "no pod or no address"
	}
	pod := pods[r.IntN(len(pods))]
	if slices.ContainsFunc(n.containers, func(c *simContainer) bool { return c.UID == pod.uid }) {
		return "the pod has a container"
	}
	n.w.made++
	c := &simContainer{podRequest: podRequest{
		Label: fmt.Sprint("label-", n.w.made), Namespace: pod.namespace, Name: pod.name, UID: pod.uid, Addresses: free[:1],
	}}
	c.request = &request{podRequest: &c.podRequest}
	n.containers = append(n.containers, c)
	n.ask(c)
	return "ADD of " + pod.key() + " " + pod.uid
}

// ask asks the server for the pod of an ADD if the agent does not know it.
func (n *simNode) ask(c *simContainer) {
	if !n.keeper.mustFetch(c.request) {
		return
	}
	c.request.found, _ = n.source.Fetch(context.Background(), c.Namespace, c.Name)
	c.request.fetched = true
	if o, ok := n.w.objects[simPods][c.Namespace+"/"+c.Name]; ok {
		c.fetched = &o
	}
}

// answer answers an ADD as Keeper.answer does, or with what the former agent saved.
func (n *simNode) answer(c *simContainer) string {
	c.answered = true
	k := n.keeper
	if !k.synced {
		egress, ingress := n.saved.Choose(c.Namespace, c.Name, c.UID, "", nil)
		pod, known := n.savedOf[simPods][c.Namespace+"/"+c.Name]
		denied := !known || pod.uid != c.UID
		isolated := denied
		for _, p := range n.savedOf[simPolicies] {
			isolated = isolated || p.namespace == c.Namespace && (p.selects == "" || p.selects == pod.app)
		}
		if denied != (egress == podfilter.Deny) || isolated != (ingress != "") || denied && ingress != podfilter.Deny {
			n.w.broken("the saved policies give %s %q and %q, and the saved pod is %+v", c.UID, egress, ingress, pod)
		}
		n.record(c)
		return "ADD by saved policies of " + c.UID
	}
	for k.mustFetch(c.request) {
		n.ask(c)
	}
	if f := c.request.found; f != nil && k.table.Pod(c.Namespace, c.Name) == f && n.received[simPods][c.Namespace+"/"+c.Name].uid != f.UID {
		delete(n.received[simPods], c.Namespace+"/"+c.Name) // the answer says that it was deleted
	}
	k.local.announce(&c.podRequest)
	k.local.putInto(k.table)
	n.settle()
	return "answer of the ADD of " + c.UID
}

// record stores the record of a container, which the agent reads.
func (n *simNode) record(c *simContainer) string {
	l := &n.keeper.local
	c.recorded, l.recorded[c.Label], l.changed = true, &c.podRequest, true
	delete(l.announced, c.Label)
	n.settle()
	return "the record of " + c.UID
}

func (n *simNode) del(c *simContainer) string {
	n.containers = slices.DeleteFunc(n.containers, func(o *simContainer) bool { return o == c })
	n.keeper.local.end(&c.podRequest)
	n.settle()
	return "DEL of " + c.UID
}

func simAddresses() (all []netip.Addr) {
	for i := range 8 {
		all = append(all, netip.AddrFrom4([4]byte{10, 9, 0, byte(i)}))
	}
	return all
}

func (w *simWorld) broken(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
	}
}

func (w *simWorld) Do(r *rand.Rand) string {
	n := w.nodes[r.IntN(len(w.nodes))]
	collection := []string{simNamespaces, simPolicies, simPods, simPods}[r.IntN(4)]
	said := func(s string) string { return n.name + ": " + s }
	switch k := r.IntN(100); {
	case k < 50:
		s := ""
		for range 1 + r.IntN(6) {
			s += n.follow(collection, r, true) + "; "
			n.settle()
		}
		return said(s)
	case k < 70:
		return w.change(r)
	case k < 80:
		return said(n.add(r))
	case k < 97 && len(n.containers) > 0:
		switch c := n.containers[r.IntN(len(n.containers))]; {
		case !c.answered:
			return said(n.answer(c))
		case !c.recorded:
			return said(n.record(c))
		default:
			return said(n.del(c))
		}
	case k == 98:
		n.stop()
		n.start()
		return said("the agent is killed and starts")
	}
	w.compacted = w.version - r.IntN(4)
	return "the server forgets old events"
}

// Check compares what each node would enforce with the objects that it knows.
func (w *simWorld) Check() error {
	for _, n := range w.nodes {
		if n.keeper.synced && w.err == nil {
			w.err = n.check()
		}
	}
	return w.err
}

func (n *simNode) check() error {
	v, t := n.view(), n.keeper.table
	var have, want []string
	for _, p := range t.State().Policies {
		have = append(have, p.Namespace+"/"+p.Name)
	}
	for _, p := range t.Pods() {
		have = append(have, fmt.Sprintf("%s %s %s %s %v", p.Key(), p.UID, p.Labels["app"], p.Addresses, p.Finished))
	}
	for _, p := range v[simPolicies] {
		want = append(want, p.key())
	}
	for _, p := range v[simPods] {
		want = append(want, fmt.Sprintf("%s %s %s [%s] %v", p.key(), p.uid, p.app, p.address, p.finished))
	}
	slices.Sort(have)
	slices.Sort(want)
	if !slices.Equal(have, want) {
		return fmt.Errorf("%s has %v, and was told %v", n.name, have, want)
	}
	explainer := netpolicy.NewExplainer(t)
	for _, c := range n.containers {
		for _, client := range simAddresses() {
			if !c.answered || client == c.Addresses[0] {
				continue
			}
			want := v.allows(n.containers, client, c)
			for _, o := range n.containers { // a pod that is not known may send nothing
				want = want && (!o.answered || o.Addresses[0] != client || v[simPods][o.Namespace+"/"+o.Name].uid == o.UID)
			}
			if e := explainer.Explain(netpolicy.Flow{Client: client, Server: c.Addresses[0], Protocol: "UDP", Port: 80}); e.Allowed != want {
				return fmt.Errorf("%s: %s -> %s of %s/%s %s is %v: %+v", n.name, client, c.Addresses[0], c.Namespace, c.Name, c.UID, e.Allowed, e)
			}
		}
	}
	return nil
}

// End ends all containers, and sends the nodes everything. Then each knows the objects of the server and nothing else.
func (w *simWorld) End() error {
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range w.nodes {
		for len(n.containers) > 0 {
			n.del(n.containers[0])
		}
		for _, collection := range []string{simNamespaces, simPolicies, simPods} {
			for !strings.HasSuffix(n.follow(collection, r, false), "nothing") {
				n.settle()
			}
		}
		if !reflect.DeepEqual(n.received, w.objects) {
			return fmt.Errorf("%s was told %v, and the server has %v", n.name, n.received, w.objects)
		}
	}
	return nil
}

func (w *simWorld) Close() {
	for _, n := range w.nodes {
		n.stop()
	}
	w.server.Close()
}

// TestSim plays histories of agents that follow a server at its worst. What a node enforces is what the objects that it was told
// require, no ADD gets the verdict of another pod's UID, and in the end the node knows the objects of the server and nothing else.
func TestSim(t *testing.T) {
	p := sim.Plan{
		New:   func(n int, r *rand.Rand) sim.World { return newSimWorld(t, n, r) },
		Steps: func(n int) int { return 100 + 10*min(n, 10) },
	}
	p.Run(t, 40)
}
