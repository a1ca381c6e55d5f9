package multi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/meta/multi/nad"
	"github.com/cnibox/cnibox/roles/meta/multi/wish"
	"github.com/cnibox/cnibox/roles/netlist"
	"github.com/cnibox/cnibox/store"
)

// resolver turns wishes into delegates.
type resolver struct {
	*handler
	req       *roles.Request
	namespace string
	find      *nad.Finder
	// held counts, by resource, the devices that networks have taken.
	held map[string]int
	all  []store.Delegate
	// asked is, for each of all, where it was asked for.
	asked []string
}

// resolve finds all that the pod is to be attached to, the default network first.
func (m *handler) resolve(ctx context.Context, req *roles.Request, api cluster) ([]store.Delegate, error) {
	annotations, err := m.annotations(ctx, req, api)
	if err != nil {
		return nil, err
	}
	r := &resolver{handler: m, req: req, namespace: req.Args.Get("K8S_POD_NAMESPACE"), find: m.finder(api), held: map[string]int{}}
	w, chosen, err := m.wishes(annotations, r.namespace)
	if err != nil {
		return nil, err
	}
	rest, err := r.first(ctx, w, chosen)
	if err != nil {
		return nil, err
	}
	if !m.conf.isSystem(r.namespace) {
		if err := r.defaults(ctx); err != nil {
			return nil, err
		}
	}
	errs := []error{r.choices(ctx, rest)}
	for i := range w.Networks {
		errs = append(errs, r.wished(ctx, fmt.Sprintf("annotation %s[%d]", wish.NetworksKey, i), &w.Networks[i]))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return r.all, r.nameInterfaces()
}

// local are the networks that every pod gets, as far as this node knows them.
func (m *handler) local(ctx context.Context) ([]store.Delegate, error) {
	r := &resolver{handler: m, req: &roles.Request{IfName: "eth0"}, find: m.finder(nil), held: map[string]int{}}
	_, err := r.first(ctx, &wish.Wishes{}, nil)
	if err == nil {
		err = r.defaults(ctx)
	}
	if err == nil {
		err = r.nameInterfaces()
	}
	return r.all, err
}

// first resolves the default network: that of the pod's annotation, else what the
// pod chose first, else the configuration's. It returns what else was chosen.
func (r *resolver) first(ctx context.Context, w *wish.Wishes, chosen []wish.Plugin) ([]wish.Plugin, error) {
	d := store.Delegate{IfName: r.req.IfName, Runtime: r.given()}
	switch {
	case w.Default != nil:
		n := *w.Default
		if n.Namespace == "" {
			n.Namespace = r.conf.MultusNamespace
		}
		if n.Namespace != r.conf.MultusNamespace {
			return nil, &roles.ConfError{Path: "annotation " + wish.DefaultKey, Reason: fmt.Sprintf("%q is of namespace %q: default networks are those of multusNamespace, %q", n.Name, n.Namespace, r.conf.MultusNamespace)}
		}
		if n.IfName != "" && n.IfName != r.req.IfName {
			return nil, r.notFirst(wish.DefaultKey, n.Name, n.IfName)
		}
		found, err := r.find.Network(ctx, n.Namespace, n.Name)
		if err != nil {
			return nil, err
		}
		for key, value := range n.Requests() {
			d.Runtime[key] = value
		}
		wishFor(&d, &n)
		return chosen, r.add("annotation "+wish.DefaultKey, d, found, n.Requests())
	case len(chosen) > 0:
		if err := r.eligible(chosen[0]); err != nil {
			return nil, err
		}
		if chosen[0].IfName != "" && chosen[0].IfName != r.req.IfName {
			return nil, r.notFirst(wish.PluginsKey, chosen[0].Name, chosen[0].IfName)
		}
		found, err := r.find.Default(ctx, r.conf.MultusNamespace, chosen[0].Name)
		if err != nil {
			return nil, err
		}
		return chosen[1:], r.add("annotation "+wish.PluginsKey, d, found, nil)
	case r.conf.ClusterNetwork != "":
		found, err := r.find.Default(ctx, r.conf.MultusNamespace, r.conf.ClusterNetwork)
		if err != nil {
			return nil, fmt.Errorf("clusterNetwork: %w", err)
		}
		return nil, r.add("clusterNetwork", d, found, nil)
	}
	if len(r.conf.Delegates) == 0 {
		return nil, nil // DEL goes on with what there is; ADD had an error before
	}
	return nil, r.inline(0, d)
}

// notFirst refuses another interface for the default network than the runtime's.
func (r *resolver) notFirst(key, network, ifName string) error {
	return &roles.ConfError{Path: "annotation " + key, Reason: fmt.Sprintf("%q cannot have interface %q: the first network has the runtime's, %q", network, ifName, r.req.IfName)}
}

// wishFor puts in what is wished of a network beside interface and runtimeConfig.
func wishFor(d *store.Delegate, n *wish.Network) {
	d.Args, d.Device, d.Gateways, d.NoIPAM = n.CNIArgs, n.DeviceID, n.DefaultRoute, n.Extras.NoIP()
	for _, rt := range n.Extras.PolicyRoutes {
		d.Routes = append(d.Routes, store.PolicyRoute{Dst: rt.Dst, GW: rt.GW})
	}
}

// given is what the runtime handed over for the default network, but for what the
// role itself reads.
func (r *resolver) given() map[string]json.RawMessage {
	out := map[string]json.RawMessage{}
	for key, value := range r.conf.RuntimeConfig {
		out[key] = value
	}
	return out
}

// defaults resolves the further networks of every pod.
func (r *resolver) defaults(ctx context.Context) error {
	var errs []error
	if r.conf.ClusterNetwork != "" {
		for i, value := range r.conf.DefaultNetworks {
			path := fmt.Sprintf("defaultNetworks[%d]", i)
			found, err := r.find.Default(ctx, r.conf.MultusNamespace, value)
			if err == nil {
				err = r.add(path, store.Delegate{}, found, nil)
			} else {
				err = fmt.Errorf("%s: %w", path, err)
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}
	for i := 1; i < len(r.conf.Delegates); i++ {
		errs = append(errs, r.inline(i, store.Delegate{}))
	}
	return errors.Join(errs...)
}

// inline adds a network that is in the configuration itself.
func (r *resolver) inline(i int, d store.Delegate) error {
	path := fmt.Sprintf("delegates[%d]", i)
	l, err := netlist.Parse(r.conf.Delegates[i], r.conf.CNIVersion)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	d.Name, d.List, d.Version = l.Name, r.conf.Delegates[i], r.conf.CNIVersion
	r.all, r.asked = append(r.all, d), append(r.asked, path)
	return nil
}

// choices resolves what the pod chose beside the default network.
func (r *resolver) choices(ctx context.Context, rest []wish.Plugin) error {
	var errs []error
	for _, p := range rest {
		err := r.eligible(p)
		if err == nil {
			var found *nad.Network
			if found, err = r.find.Default(ctx, r.conf.MultusNamespace, p.Name); err == nil {
				err = r.add("annotation "+wish.PluginsKey, store.Delegate{IfName: p.IfName}, found, nil)
			}
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// wished resolves one network of the annotation.
func (r *resolver) wished(ctx context.Context, path string, n *wish.Network) error {
	if r.conf.NamespaceIsolation && n.Namespace != r.namespace && !r.conf.isGlobal(n.Namespace) {
		return &roles.ConfError{Path: path, Reason: fmt.Sprintf("network %q is of another namespace than the pod, %q, and namespaceIsolation is set: add %q to globalNamespaces to allow it", n, r.namespace, n.Namespace)}
	}
	found, err := r.find.Network(ctx, n.Namespace, n.Name)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	d := store.Delegate{IfName: n.IfName, Runtime: n.Requests()}
	wishFor(&d, n)
	return r.add(path, d, found, n.Requests())
}

// add completes a delegate by the network that was found. What was asked for and no
// plugin of the network has is a fault (the standard, section 4.1.2.1).
func (r *resolver) add(path string, d store.Delegate, found *nad.Network, requests map[string]json.RawMessage) error {
	l, err := netlist.Parse(found.Conf, r.conf.CNIVersion)
	if err != nil {
		return fmt.Errorf("%s: network of %s: %w", path, found.From, err)
	}
	d.Name, d.List, d.Version = l.Name, found.Conf, r.conf.CNIVersion
	if found.Namespace != "" {
		d.Name = found.Namespace + "/" + found.Name
	}
	var f roles.Faults
	for key := range requests {
		if !l.Can(key) && key != "deviceID" { // a device is handed on in another way too
			f.Addf(path+"."+key, "network %q cannot do that: none of its plugins has it in \"capabilities\" (%s)", d.Name, found.From)
		}
	}
	if d.NoIPAM {
		delete(d.Runtime, "ips")
	}
	if err := f.Err(); err != nil {
		return err
	}
	link, err := hostLink(found.Conf)
	if err != nil {
		return fmt.Errorf("%s: network of %s: %w", path, found.From, err)
	}
	if link != nil {
		d.HostLink = link.Name
	}
	d.Resource = found.Resource
	if d.Device == "" && found.Resource != "" {
		if d.Device, err = r.device(found.Resource); err != nil {
			return fmt.Errorf("%s: network %q: %w", path, d.Name, err)
		}
	}
	r.all, r.asked = append(r.all, d), append(r.asked, path)
	return nil
}

// device is the pod's next one of a resource.
func (r *resolver) device(resource string) (string, error) {
	ids, err := nad.Devices(nad.CheckpointFile, r.req.Args.Get("K8S_POD_UID"), resource)
	if err != nil {
		return "", err
	}
	n := r.held[resource]
	if n >= len(ids) {
		return "", fmt.Errorf("%w: the pod has %d devices of resource %q and wants one more", roles.ErrConf, len(ids), resource)
	}
	r.held[resource]++
	return ids[n], nil
}

// nameInterfaces names those that nobody named by their place, as Multus does, and
// refuses names that two have.
func (r *resolver) nameInterfaces() error {
	var f roles.Faults
	taken := map[string]int{}
	for i := range r.all {
		name := r.all[i].IfName
		if name == "" {
			continue
		}
		if by, twice := taken[name]; twice {
			f.Addf(r.asked[i]+".interface", "%q is the interface of network %q (%s) already: give network %q another one, or none", name, r.all[by].Name, r.asked[by], r.all[i].Name)
			continue
		}
		taken[name] = i
	}
	for i := range r.all {
		for n := i; r.all[i].IfName == ""; n++ {
			name := fmt.Sprintf("%s%d", r.conf.InterfacePrefix, n)
			if _, is := taken[name]; !is {
				r.all[i].IfName, taken[name] = name, i
			}
		}
	}
	return f.Err()
}
