package policy

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

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

// serve is the server. GETs of a pod are answered at once: the world waits for them.
func (w *simWorld) serve(out http.ResponseWriter, r *http.Request) {
	life, path, _ := strings.Cut(r.URL.Path[1:], "/")
	if pod, is := strings.CutPrefix("/"+path, simNamespaces+"/"); is {
		if o, ok := w.objects[simPods][strings.Replace(pod, "/pods/", "/", 1)]; ok {
			_ = json.NewEncoder(out).Encode(o.text(simPods))
			return
		}
	}
	switch "/" + path { // not by the world's objects, which may change meanwhile
	case simNamespaces, simPolicies, simPods:
	default:
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
		for _, n := range w.nodes {
			for _, c := range n.containers {
				if !c.answered && r.IntN(2) == 0 { // its ADD runs
					o.namespace, o.name = c.Namespace, c.Name
				}
			}
		}
		said, node := "", w.nodes[r.IntN(len(w.nodes))].name
		if old, exists := w.objects[simPods][o.key()]; exists {
			said, node = w.put(simPods, old, true)+"; ", old.node
			if r.IntN(2) == 0 {
				return said
			}
		}
		w.made++
		o.uid, o.node, o.app = fmt.Sprint("uid-", w.made), node, either("a", "b")
		return said + w.put(simPods, o, false)
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
