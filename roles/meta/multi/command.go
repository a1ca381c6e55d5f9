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

// verbs returns the commands of the role.
func verbs() []roles.CommandVerb {
	return []roles.CommandVerb{
		{Name: "attach", Args: "POD|CONTAINERID [NAMESPACE/]NETWORK[@IFNAME]", Help: "attach a running container to one more network", Example: "attach default/web storage@net1", Run: withContainer((*handler).hotPlug)},
		{Name: "detach", Args: "POD|CONTAINERID [NAMESPACE/]NETWORK[@IFNAME]|@IFNAME", Help: "detach a running container from a network", Example: "detach default/web @net1", Run: withContainer((*handler).hotUnplug)},
	}
}

// hotCall is one call of attach or detach.
type hotCall struct {
	*runner
	request *store.Delegation
	ns      *netops.Namespace
	want    string
	api     kubeAPI
}

// withContainer finds and locks the container's record and calls f with it.
func withContainer(f func(*handler, context.Context, *hotCall) error) func(context.Context, *roles.Host, map[string]string, []string) (any, error) {
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
		request, out, err := loadRecords(ctx, h, key)
		if err != nil {
			return nil, err
		}
		if request == nil || out == nil || out.State != store.Done {
			return nil, fmt.Errorf("%w: container %q is not completely attached", store.ErrNotFound, key.ContainerID)
		}
		ns, err := h.Net.OpenNamespace(request.Netns.Path)
		if err != nil {
			return nil, err
		}
		defer ns.Close()
		if alive, err := isAlive(ctx, h, request, out, ns); err != nil || !alive {
			return nil, errors.Join(err, fmt.Errorf("%w: %q is not the network namespace of container %q", roles.ErrNetns, request.Netns.Path, key.ContainerID))
		}
		conf, err := readConf(request.Conf)
		if err != nil && !errors.Is(err, roles.ErrConf) {
			return nil, err
		}
		m := &handler{conf: conf}
		p := &hotCall{request: request, ns: ns, want: args[1], runner: m.recordedRunner(h, &roles.Request{
			ContainerID: key.ContainerID, Netns: request.Netns.Path, IfName: key.IfName, Network: key.Network, CNIVersion: conf.CNIVersion,
		}, request, out)}
		p.api, err = m.api()
		if err != nil {
			return nil, err
		}
		if err := f(m, ctx, p); err != nil {
			return nil, err
		}
		p.publish(ctx, p.api)
		return p.out.Status, nil
	}
}

// containerOf finds the attachment by a container ID, the beginning of one, or a pod as
// namespace/name. The result must be unique.
func containerOf(ctx context.Context, h *roles.Host, name string) (store.Key, error) {
	all, _, err := allRecords(ctx, h)
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
	return store.Key{}, fmt.Errorf("%w: %q matches %d containers: use the container ID", store.ErrTaken, name, len(found))
}

// hotPlug attaches one more network. It records the network first, so that DEL detaches it even if
// this call is killed.
func (m *handler) hotPlug(ctx context.Context, p *hotCall) error {
	ns, _, _ := strings.Cut(p.request.Pod, "/")
	w, err := wish.Parse(map[string]string{wish.NetworksKey: p.want}, ns)
	if err != nil {
		return roles.Usagef("%w", err)
	}
	r := &resolver{handler: m, req: p.req, namespace: ns, find: m.finder(p.api), devices: newDevices(p.req, p.api)}
	for _, n := range p.request.Delegates {
		r.held[n.Resource]++
	}
	r.all = slices.Clone(p.request.Delegates)
	r.origins = make([]string, len(r.all))
	for i := range r.origins {
		r.origins[i] = "attached"
	}
	for i := range w.Networks {
		if err := r.resolveRequested(ctx, p.want, &w.Networks[i]); err != nil {
			return err
		}
	}
	if err := r.nameInterfaces(); err != nil {
		return err
	}
	before := p.request.Delegates
	more := r.all[len(before):]
	for i := range more { // a detached network may have had the same interface name
		p.out.Done = slices.DeleteFunc(p.out.Done, func(a store.Answer) bool { return a.IfName == more[i].IfName })
	}
	p.request.Delegates, p.request.Updated = r.all, p.h.Now()
	if err := recordRequest(ctx, p.h, p.request, more, p.out); err != nil {
		return err
	}
	err = p.makeHostLinks(ctx, more)
	if err == nil {
		err = p.add(ctx, more, true)
	}
	if err == nil {
		err = p.route(ctx, more, p.ns)
	}
	if err == nil {
		return p.recordStatus(ctx)
	}
	ctx = context.WithoutCancel(ctx)
	p.skipUnbegun(more)
	if back := p.del(ctx, more, true); back != nil {
		return errors.Join(err, back) // the network stays recorded for DEL
	}
	return errors.Join(err, p.releaseHostLinks(ctx, more, before, func() error { return p.recordDelegates(ctx, before) }))
}

// hotUnplug detaches a network other than the default one.
func (m *handler) hotUnplug(ctx context.Context, p *hotCall) error {
	name, ifName, _ := strings.Cut(p.want, "@")
	ns, _, _ := strings.Cut(p.request.Pod, "/")
	var found []int
	for i := range p.request.Delegates {
		n := &p.request.Delegates[i]
		if (name == "" || n.Name == name || n.Name == ns+"/"+name) && (ifName == "" || n.IfName == ifName) {
			found = append(found, i)
		}
	}
	switch {
	case len(found) == 0:
		return fmt.Errorf("%w: container %q is not attached to %q", store.ErrNotFound, p.request.Owner.ContainerID, p.want)
	case len(found) > 1:
		return fmt.Errorf("%w: %q matches %d interfaces: use NETWORK@IFNAME", store.ErrTaken, p.want, len(found))
	case found[0] == 0:
		return fmt.Errorf("%w: %q is the default network, which cannot be detached", roles.ErrConf, p.want)
	}
	gone := p.request.Delegates[found[0]]
	if err := p.undoRoutes(ctx); err != nil {
		return err
	}
	if err := p.del(ctx, []store.Delegate{gone}, true); err != nil {
		return err
	}
	p.out.Done = slices.DeleteFunc(p.out.Done, func(a store.Answer) bool { return a.IfName == gone.IfName })
	left := slices.Delete(slices.Clone(p.request.Delegates), found[0], found[0]+1)
	if err := p.releaseHostLinks(ctx, []store.Delegate{gone}, left, func() error { return p.recordDelegates(ctx, left) }); err != nil {
		return err
	}
	if err := p.route(ctx, p.request.Delegates, p.ns); err != nil {
		return err
	}
	return p.recordStatus(ctx)
}

// undoRoutes undoes the routes that concern several networks. The caller computes them again for
// the remaining networks.
func (p *hotCall) undoRoutes(ctx context.Context) error {
	changes, err := p.changes()
	if err == nil {
		err = p.h.Net.Undo(ctx, changes, p.ns)
	}
	if err != nil || len(changes) == 0 {
		return err
	}
	p.out.Changes = nil
	return recordOutcome(ctx, p.h, p.out)
}

// recordDelegates records the present networks.
func (p *hotCall) recordDelegates(ctx context.Context, all []store.Delegate) error {
	p.request.Delegates, p.request.Updated = all, p.h.Now()
	return p.h.Store.KeepUpdate(ctx, func(tx *store.KeepTx) error { return tx.PutDelegation(p.request) })
}

// recordStatus records the result and the pod's present status.
func (p *hotCall) recordStatus(ctx context.Context) error {
	status, err := p.status(p.request.Delegates)
	if err != nil {
		return err
	}
	p.out.Status = status
	return recordOutcome(ctx, p.h, p.out)
}
