package multi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/meta/multi/wish"
	"github.com/cnibox/cnibox/store"
)

// verbs are the commands of the role.
func verbs() []roles.CommandVerb {
	return []roles.CommandVerb{
		{Name: "attach", Args: "POD|CONTAINERID [NAMESPACE/]NETWORK[@IFNAME]", Help: "attach a running container to one more network", Run: plug((*handler).hotPlug)},
		{Name: "detach", Args: "POD|CONTAINERID [NAMESPACE/]NETWORK[@IFNAME]|@IFNAME", Help: "detach a running container from a network", Run: plug((*handler).hotUnplug)},
	}
}

// hot is one such call.
type hot struct {
	*course
	asked *store.Delegation
	ns    *netops.Namespace
	want  string
	api   cluster
}

// plug finds the container's record, locks it, and calls f with its namespace.
func plug(f func(*handler, context.Context, *hot) error) func(context.Context, *roles.Host, map[string]string, []string) (any, error) {
	return func(ctx context.Context, h *roles.Host, _ map[string]string, args []string) (any, error) {
		key, err := containerOf(ctx, h, args[0])
		if err != nil {
			return nil, err
		}
		held, err := lock(ctx, h, key)
		if err != nil {
			return nil, err
		}
		defer held.Unlock()
		asked, out, err := load(ctx, h, key)
		if err != nil {
			return nil, err
		}
		if asked == nil || out == nil || out.State != store.Done {
			return nil, fmt.Errorf("%w: container %q is not attached whole", store.ErrNotFound, key.ContainerID)
		}
		ns, err := h.Net.OpenNamespace(asked.Netns.Path)
		if err != nil {
			return nil, err
		}
		defer ns.Close()
		if alive, err := isAlive(ctx, h, asked, out, ns); err != nil || !alive {
			return nil, errors.Join(err, fmt.Errorf("%w: %q is another namespace than that of container %q", roles.ErrNetns, asked.Netns.Path, key.ContainerID))
		}
		conf, err := readConf(asked.Conf)
		if err != nil && !errors.Is(err, roles.ErrConf) {
			return nil, err
		}
		m := &handler{conf: conf}
		p := &hot{asked: asked, ns: ns, want: args[1], course: m.recorded(h, &roles.Request{
			ContainerID: key.ContainerID, Netns: asked.Netns.Path, IfName: key.IfName, Network: key.Network, CNIVersion: conf.CNIVersion,
		}, asked, out)}
		if p.api, err = m.api(); err != nil {
			return nil, err
		}
		if err := f(m, ctx, p); err != nil {
			return nil, err
		}
		p.publish(ctx, p.api)
		return p.out.Status, nil
	}
}

// containerOf finds the one attachment of a container ID, or its beginning, or of a
// pod, namespace/name.
func containerOf(ctx context.Context, h *roles.Host, name string) (store.Key, error) {
	all, _, err := delegations(ctx, h)
	if err != nil {
		return store.Key{}, err
	}
	var found []store.Key
	for i := range all {
		d := &all[i]
		_, pod, _ := strings.Cut(d.Pod, "/")
		if d.Owner.ContainerID == name {
			return d.Owner, nil
		}
		if name != "" && (d.Pod == name || pod == name || len(name) >= 6 && strings.HasPrefix(d.Owner.ContainerID, name)) {
			found = append(found, d.Owner)
		}
	}
	switch len(found) {
	case 0:
		return store.Key{}, fmt.Errorf("%w: no container or pod %q is attached by multi", store.ErrNotFound, name)
	case 1:
		return found[0], nil
	}
	return store.Key{}, fmt.Errorf("%w: %q may be %d containers: name it by its ID", store.ErrTaken, name, len(found))
}

// hotPlug attaches one more network. What is asked for is recorded first, so that DEL
// takes it too if this call dies.
func (m *handler) hotPlug(ctx context.Context, p *hot) error {
	ns, _, _ := strings.Cut(p.asked.Pod, "/")
	w, err := wish.Parse(map[string]string{wish.NetworksKey: p.want}, ns)
	if err != nil {
		return roles.Usagef("%w", err)
	}
	r := &resolver{handler: m, req: p.req, namespace: ns, find: m.finder(p.api), held: map[string]int{}}
	for _, n := range p.asked.Delegates {
		r.held[n.Resource]++
	}
	r.all = slices.Clone(p.asked.Delegates)
	r.asked = make([]string, len(r.all))
	for i := range r.asked {
		r.asked[i] = "attached"
	}
	for i := range w.Networks {
		if err := r.wished(ctx, p.want, &w.Networks[i]); err != nil {
			return err
		}
	}
	if err := r.nameInterfaces(); err != nil {
		return err
	}
	before := p.asked.Delegates
	more := r.all[len(before):]
	for i := range more { // one that was detached may have had its name
		p.out.Done = slices.DeleteFunc(p.out.Done, func(a store.Answer) bool { return a.IfName == more[i].IfName })
	}
	if err := p.keep(ctx, r.all); err != nil {
		return err
	}
	err = p.makeLinks(ctx, more)
	if err == nil {
		err = p.add(ctx, more, true)
	}
	if err == nil {
		err = p.route(ctx, more, p.ns)
	}
	if err == nil {
		return p.tell(ctx)
	}
	ctx = context.WithoutCancel(ctx)
	p.spare(more)
	if back := p.del(ctx, more, true); back != nil {
		return errors.Join(err, back) // it stays recorded for DEL
	}
	return errors.Join(err, p.releaseLinks(ctx, more, before, func() error { return p.keep(ctx, before) }))
}

// hotUnplug detaches a network that is not the default one.
func (m *handler) hotUnplug(ctx context.Context, p *hot) error {
	name, ifName, _ := strings.Cut(p.want, "@")
	ns, _, _ := strings.Cut(p.asked.Pod, "/")
	var found []int
	for i := range p.asked.Delegates {
		n := &p.asked.Delegates[i]
		if (name == "" || n.Name == name || n.Name == ns+"/"+name) && (ifName == "" || n.IfName == ifName) {
			found = append(found, i)
		}
	}
	switch {
	case len(found) == 0:
		return fmt.Errorf("%w: container %q is not attached to %q", store.ErrNotFound, p.asked.Owner.ContainerID, p.want)
	case len(found) > 1:
		return fmt.Errorf("%w: %q may be %d interfaces: name one, NETWORK@IFNAME", store.ErrTaken, p.want, len(found))
	case found[0] == 0:
		return fmt.Errorf("%w: %q is the default network, which goes with the container", roles.ErrConf, p.want)
	}
	gone := p.asked.Delegates[found[0]]
	if err := p.reroute(ctx); err != nil {
		return err
	}
	if err := p.del(ctx, []store.Delegate{gone}, true); err != nil {
		return err
	}
	p.out.Done = slices.DeleteFunc(p.out.Done, func(a store.Answer) bool { return a.IfName == gone.IfName })
	left := slices.Delete(slices.Clone(p.asked.Delegates), found[0], found[0]+1)
	if err := p.releaseLinks(ctx, []store.Delegate{gone}, left, func() error { return p.keep(ctx, left) }); err != nil {
		return err
	}
	if err := p.route(ctx, p.asked.Delegates, p.ns); err != nil {
		return err
	}
	return p.tell(ctx)
}

// reroute undoes what was done to routes for several networks: with one of them gone
// it is computed anew.
func (p *hot) reroute(ctx context.Context) error {
	changes, err := p.changes()
	if err == nil {
		err = p.h.Net.Undo(ctx, changes, p.ns)
	}
	if err != nil || len(changes) == 0 {
		return err
	}
	p.out.Changes = nil
	return put(ctx, p.h, p.out)
}

// keep records what is asked for by now.
func (p *hot) keep(ctx context.Context, all []store.Delegate) error {
	p.asked.Delegates, p.asked.Updated = all, p.h.Now()
	return p.h.Store.KeepUpdate(ctx, func(tx *store.KeepTx) error { return tx.PutDelegation(p.asked) })
}

// tell records what came of it, and the pod's status by now.
func (p *hot) tell(ctx context.Context) error {
	status, err := p.status(p.asked.Delegates)
	if err != nil {
		return err
	}
	p.out.Status = status
	return put(ctx, p.h, p.out)
}
