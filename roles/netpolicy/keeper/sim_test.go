package keeper

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
	"strconv"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops/podfilter"
	"github.com/cnibox/cnibox/roles/netpolicy"
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

type object = map[string]any

// simObject is an object with its version. Nobody changes it.
type simObject struct {
	namespace, name string
	version         int
	// A pod has a UID, a node, a label app, and a status. Its address may be another pod's after its end.
	uid, node, app, address string
	finished                bool
	// A policy selects the pods with a label app, or all without. It allows nothing, or the peers with the label from, or all, in its
	// namespace or in those of a team, which is the label of a namespace.
	selects, from, team string
	closed              bool
}

func (o *simObject) key() string { return strings.TrimPrefix(o.namespace+"/"+o.name, "/") }

// text returns the object of a collection.
func (o *simObject) text(collection string) object {
	labels := func(key, value string) object {
		if value == "" {
			return object{}
		}
		return object{key: value}
	}
	selector := func(key, value string) object { return object{"matchLabels": labels(key, value)} }
	meta := object{"name": o.name, "resourceVersion": strconv.Itoa(o.version)}
	if o.namespace != "" {
		meta["namespace"] = o.namespace
	}
	switch collection {
	case simNamespaces:
		meta["labels"] = labels("team", o.team)
		return object{"metadata": meta}
	case simPods:
		meta["labels"], meta["uid"] = labels("app", o.app), o.uid
		status := object{"phase": "Running"}
		if o.finished {
			status["phase"] = "Failed"
		}
		if o.address != "" {
			status["podIPs"] = []object{{"ip": o.address}}
		}
		return object{"metadata": meta, "spec": object{"nodeName": o.node}, "status": status}
	}
	spec := object{"podSelector": selector("app", o.selects), "policyTypes": []string{"Ingress"}}
	if !o.closed {
		peer := object{"podSelector": selector("app", o.from)}
		if o.team != "" {
			peer["namespaceSelector"] = selector("team", o.team)
		}
		spec["ingress"] = []object{{"from": []object{peer}}}
	}
	return object{"metadata": meta, "spec": spec}
}

type simEvent struct {
	collection, kind string
	simObject
}

// simObjects are objects by collection and key.
type simObjects map[string]map[string]simObject

func newSimObjects() simObjects { return simObjects{simNamespaces: {}, simPolicies: {}, simPods: {}} }

// allows reports whether a client reaches a container of a node that knows the objects, and whose containers are local.
func (o simObjects) allows(local []*simContainer, client netip.Addr, c *simContainer) bool {
	pod, known := o[simPods][c.Namespace+"/"+c.Name]
	if !known || pod.uid != c.UID {
		return false
	}
	isolated := false
	for _, p := range o[simPolicies] {
		if p.namespace != pod.namespace || p.selects != "" && p.selects != pod.app {
			continue
		}
		isolated = true
		for _, q := range o[simPods] {
			from := !p.closed && (p.from == "" || p.from == q.app) && (p.team == "" && p.namespace == q.namespace || p.team != "" && o[simNamespaces][q.namespace].team == p.team)
			if from && slices.Contains(q.addresses(local), client) {
				return true
			}
		}
	}
	return !isolated
}

// addresses returns those of a pod on a node, which knows its own containers before the server does.
func (o *simObject) addresses(local []*simContainer) (all []netip.Addr) {
	if o.finished {
		return nil
	}
	for _, c := range local {
		if c.answered && c.Namespace == o.namespace && c.Name == o.name && c.UID == o.uid {
			all = append(all, c.Addresses...)
		}
	}
	if a, err := netip.ParseAddr(o.address); err == nil && all == nil {
		all = append(all, a)
	}
	return all
}

// The collections. Policies isolate for ingress: the other direction has the same code.
const (
	simNamespaces = "/api/v1/namespaces"
	simPolicies   = "/apis/networking.k8s.io/v1/networkpolicies"
	simPods       = "/api/v1/pods"
)

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
	saved      netpolicy.Saved
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

// simRequest is a request of a client, which does what the world wants.
type simRequest struct {
	*http.Request
	life string
	run  chan func(http.ResponseWriter)
	done chan struct{}
	// opened is true if the watch is open. Then rest are the objects that it still lists, and at is the number of events that it
	// has sent.
	opened, listing bool
	rest            []simObject
	listed          map[string]simObject
	at              int
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

// serve is the server. GETs of a pod are answered at once: the world waits for them.
func (w *simWorld) serve(out http.ResponseWriter, r *http.Request) {
	life, path, _ := strings.Cut(r.URL.Path[1:], "/")
	if pod, is := strings.CutPrefix("/"+path, simNamespaces+"/"); is {
		if o, ok := w.objects[simPods][strings.Replace(pod, "/pods/", "/", 1)]; ok {
			_ = json.NewEncoder(out).Encode(o.text(simPods))
			return
		}
	}
	if w.objects["/"+path] == nil {
		refuse(out, http.StatusNotFound)
		return
	}
	name, _, _ := strings.Cut(life, "_")
	i := slices.IndexFunc(w.nodes, func(n *simNode) bool { return n.name == name })
	q := &simRequest{Request: r, life: life, run: make(chan func(http.ResponseWriter)), done: make(chan struct{})}
	q.URL.Path = "/" + path
	select {
	case w.nodes[i].arrived <- q:
	case <-r.Context().Done():
		return
	}
	for {
		select {
		case f, ok := <-q.run:
			if !ok {
				return
			}
			f(out)
			q.done <- struct{}{}
		case <-r.Context().Done():
			return
		}
	}
}

func refuse(out http.ResponseWriter, code int) {
	out.WriteHeader(code)
	_ = json.NewEncoder(out).Encode(object{"kind": "Status", "code": code, "message": "simulated"})
}

// do lets a request do something.
func (q *simRequest) do(f func(http.ResponseWriter)) {
	q.run <- f
	<-q.done
}

// send sends an event.
func (q *simRequest) send(kind string, o object) {
	q.do(func(out http.ResponseWriter) {
		_ = json.NewEncoder(out).Encode(object{"type": kind, "object": o})
		out.(http.Flusher).Flush()
	})
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

// arrive waits for a request.
func (n *simNode) arrive() {
	q := <-n.arrived
	n.watches[q.URL.Path] = q
}

// apply waits for a change of the source and makes it.
func (n *simNode) apply() {
	f := <-n.puts
	if f == nil {
		n.keeper.synced = true
	} else {
		f(n.keeper.table)
	}
}

// settle does what the agent does after each change.
func (n *simNode) settle() {
	if !n.keeper.synced {
		return
	}
	n.keeper.local.putInto(n.keeper.table)
	if s := n.keeper.table.Save(false); s != nil {
		text, err := json.Marshal(s)
		n.saved = netpolicy.Saved{}
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

// follow answers a request of a collection, or sends what a watch waits for.
func (n *simNode) follow(collection string, r *rand.Rand, faults bool) string {
	q, w := n.watches[collection], n.w
	again := func(said string) string { // the client asks again
		close(q.run)
		n.arrive()
		return collection + ": " + said
	}
	fault := func(of int) bool { return faults && r.IntN(of) == 0 }
	since, _ := strconv.Atoi(q.URL.Query().Get("resourceVersion"))
	broken := func() string {
		if q.opened {
			q.do(func(out http.ResponseWriter) {
				c, _, _ := out.(http.Hijacker).Hijack()
				_ = c.Close()
			})
		} else {
			q.do(func(out http.ResponseWriter) { refuse(out, http.StatusInternalServerError) })
		}
		return again("the connection breaks")
	}
	switch {
	case w.breaks && fault(40):
		return broken()
	case q.URL.Query().Get("watch") == "":
		all := maps.Clone(w.objects[collection])
		q.do(func(out http.ResponseWriter) {
			items := []object{}
			for _, key := range slices.Sorted(maps.Keys(all)) {
				o := all[key]
				items = append(items, o.text(collection))
			}
			_ = json.NewEncoder(out).Encode(object{"metadata": object{"resourceVersion": strconv.Itoa(w.version)}, "items": items})
		})
		close(q.run)
		n.complete(collection, all)
		n.arrive()
		return collection + ": list"
	case !q.opened && q.URL.Query().Get("sendInitialEvents") != "" && fault(3):
		q.do(func(out http.ResponseWriter) { refuse(out, http.StatusUnprocessableEntity) })
		return again("no streaming list")
	case !q.opened && since > 0 && since < w.compacted && r.IntN(2) == 0:
		q.do(func(out http.ResponseWriter) { refuse(out, http.StatusGone) })
		return again("expired")
	case !q.opened:
		q.opened, q.at = true, slices.IndexFunc(w.events, func(e simEvent) bool { return e.version > since })
		if q.at < 0 {
			q.at = len(w.events)
		}
		if q.listing = q.URL.Query().Get("sendInitialEvents") != ""; q.listing {
			q.at, q.listed = len(w.events), maps.Clone(w.objects[collection])
			for _, key := range slices.Sorted(maps.Keys(q.listed)) {
				q.rest = append(q.rest, q.listed[key])
			}
		}
		q.do(func(out http.ResponseWriter) { out.(http.Flusher).Flush() })
		return collection + ": a watch"
	case q.listing && fault(8):
		q.send("ERROR", object{"code": http.StatusInternalServerError, "reason": "InternalError"})
		return again("the listing fails")
	case q.listing && w.breaks && fault(8):
		return again("the listing ends")
	case q.listing && len(q.rest) > 0:
		q.send("ADDED", q.rest[0].text(collection))
		q.rest = q.rest[1:]
		return collection + ": lists an object"
	case q.listing:
		version := w.version
		if q.at > 0 {
			version = w.events[q.at-1].version
		}
		q.send("BOOKMARK", object{"metadata": object{"resourceVersion": strconv.Itoa(version), "annotations": object{"k8s.io/initial-events-end": "true"}}})
		q.listing = false
		n.complete(collection, q.listed)
		return collection + ": lists all"
	case q.at < len(w.events) && w.events[q.at].version <= w.compacted && w.events[q.at].collection == collection:
		q.send("ERROR", object{"code": http.StatusGone, "reason": "Expired"})
		return again("expired")
	case fault(12):
		q.send("BOOKMARK", object{"metadata": object{"resourceVersion": strconv.Itoa(w.events[max(q.at-1, 0)].version)}})
		return again("the watch ends")
	}
	for q.at < len(w.events) {
		e := w.events[q.at]
		q.at++
		if e.collection != collection {
			continue
		}
		for range 1 + e.version%2 { // also twice
			q.send(e.kind, e.text(collection))
			n.apply()
		}
		if e.kind == "DELETED" {
			delete(n.received[collection], e.key())
		} else {
			n.received[collection][e.key()] = e.simObject
		}
		return fmt.Sprint(collection, ": ", e.kind, " ", e.key())
	}
	return collection + ": nothing"
}

// complete applies what was listed. The last one of the collections makes the policies known.
func (n *simNode) complete(collection string, all map[string]simObject) {
	n.apply()
	n.received[collection] = maps.Clone(all)
	n.listed[collection] = true
	if !n.keeper.synced && len(n.listed) == len(n.received) {
		n.apply()
	}
}

// view returns the objects that the node may know: those that it was told, and pods for whose ADD it asked.
func (n *simNode) view() simObjects {
	v := maps.Clone(n.received)
	v[simPods] = maps.Clone(v[simPods])
	for _, c := range n.containers {
		key := c.Namespace + "/" + c.Name
		have := n.keeper.table.Pod(c.Namespace, c.Name)
		if c.fetched != nil && c.answered && have != nil && have.UID == c.fetched.uid && v[simPods][key].uid != have.UID {
			v[simPods][key] = *c.fetched
		}
	}
	return v
}

// change changes an object of the server.
func (w *simWorld) change(r *rand.Rand) string {
	either := func(all ...string) string { return all[r.IntN(len(all))] }
	o := simObject{namespace: either("x", "y"), name: fmt.Sprint("o", r.IntN(4))}
	pods := slices.Sorted(maps.Keys(w.objects[simPods]))
	switch k := r.IntN(12); {
	case k == 0:
		o = simObject{name: o.namespace, team: either("", "a", "b")}
		return w.put(simNamespaces, o, o.team == "")
	case k < 4:
		o.selects, o.from, o.team, o.closed = either("", "a", "b"), either("", "a", "b"), either("", "a", "b"), r.IntN(4) == 0
		return w.put(simPolicies, o, r.IntN(3) == 0)
	case k < 8 || len(pods) == 0:
		if old, exists := w.objects[simPods][o.key()]; exists {
			return w.put(simPods, old, true)
		}
		w.made++
		o.uid, o.node, o.app = fmt.Sprint("uid-", w.made), w.nodes[r.IntN(len(w.nodes))].name, either("a", "b")
		return w.put(simPods, o, false)
	}
	o = w.objects[simPods][either(pods...)]
	switch r.IntN(4) {
	case 0:
		o.app = either("a", "b")
	case 1:
		o.finished = true
	default:
		for _, n := range w.nodes {
			for _, c := range n.containers {
				if c.UID == o.uid {
					o.address = c.Addresses[0].String()
				}
			}
		}
	}
	return w.put(simPods, o, false)
}

// put stores an object or deletes it.
func (w *simWorld) put(collection string, o simObject, remove bool) string {
	old, exists := w.objects[collection][o.key()]
	if remove && !exists {
		return "nothing to delete"
	}
	kind := map[bool]string{false: "ADDED", true: "MODIFIED"}[exists]
	w.version++
	if remove {
		o, kind = old, "DELETED"
		delete(w.objects[collection], o.key())
	}
	o.version = w.version
	if !remove {
		w.objects[collection][o.key()] = o
	}
	w.events = append(w.events, simEvent{collection, kind, o})
	return fmt.Sprintf("the server: %s %s %s", collection, kind, o.key())
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
	k.local.announce(&c.podRequest)
	k.local.putInto(k.table)
	pod := k.table.Ruleset().Pending[c.Addresses[0]]
	if pod.Egress+pod.Ingress == "" {
		k.local.open(&c.podRequest)
	}
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
	l := &n.keeper.local
	delete(l.recorded, c.Label)
	delete(l.announced, c.Label)
	l.changed = true
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
