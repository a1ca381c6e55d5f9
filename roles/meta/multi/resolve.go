package multi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/netlist"
	"github.com/cnibox/cnibox/roles/meta/multi/nad"
	"github.com/cnibox/cnibox/roles/meta/multi/wish"
	"github.com/cnibox/cnibox/store"
)

// resolver turns a pod's requests into delegates.
type resolver struct {
	*handler
	req       *roles.Request
	namespace string
	find      *nad.Finder
	devices
	all []store.Delegate
	// origins has for each element of all where the network was requested.
	origins []string
}

// resolve returns all networks of the pod, the default network first.
func (m *handler) resolve(ctx context.Context, req *roles.Request, api kubeAPI) ([]store.Delegate, error) {
	annotations, err := m.annotations(ctx, req, api)
	if err != nil {
		return nil, err
	}
	r := &resolver{handler: m, req: req, namespace: req.Args.Get("K8S_POD_NAMESPACE"), find: m.finder(api), devices: newDevices(req, api)}
	w, selected, err := m.requests(annotations, r.namespace)
	if err != nil {
		return nil, err
	}
	rest, err := r.resolveFirst(ctx, w, selected)
	if err != nil {
		return nil, err
	}
	if !m.conf.isSystem(r.namespace) {
		if err := r.resolveDefaultNetworks(ctx); err != nil {
			return nil, err
		}
	}
	errs := []error{r.resolveSelected(ctx, rest)}
	for i := range w.Networks {
		errs = append(errs, r.resolveRequested(ctx, fmt.Sprintf("annotation %s[%d]", wish.NetworksKey, i), &w.Networks[i]))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return r.all, r.nameInterfaces()
}

// localNetworks returns the networks of every pod that this node's files define.
func (m *handler) localNetworks(ctx context.Context) ([]store.Delegate, error) {
	r := &resolver{handler: m, req: &roles.Request{IfName: "eth0"}, find: m.finder(nil)}
	_, err := r.resolveFirst(ctx, &wish.Wishes{}, nil)
	if err == nil {
		err = r.resolveDefaultNetworks(ctx)
	}
	if err == nil {
		err = r.nameInterfaces()
	}
	return r.all, err
}

// resolveFirst resolves the default network: from the pod's annotation, or the pod's first selected
// network, or the configuration. It returns the other selected networks.
func (r *resolver) resolveFirst(ctx context.Context, w *wish.Wishes, selected []wish.Plugin) ([]wish.Plugin, error) {
	d := store.Delegate{IfName: r.req.IfName, Runtime: r.runtimeConfig()}
	switch {
	case w.Default != nil:
		n := *w.Default
		if n.Namespace == "" {
			n.Namespace = r.conf.MultusNamespace
		}
		if n.Namespace != r.conf.MultusNamespace {
			return nil, &roles.ConfError{Path: "annotation " + wish.DefaultKey, Reason: fmt.Sprintf("%q is in namespace %q: default networks must be in multusNamespace, %q", n.Name, n.Namespace, r.conf.MultusNamespace)}
		}
		if n.IfName != "" && n.IfName != r.req.IfName {
			return nil, r.wrongFirstInterface(wish.DefaultKey, n.Name, n.IfName)
		}
		found, err := r.find.Network(ctx, n.Namespace, n.Name)
		if err != nil {
			return nil, err
		}
		for key, value := range n.Requests() {
			d.Runtime[key] = value
		}
		setRequests(&d, &n)
		return selected, r.add(ctx, "annotation "+wish.DefaultKey, d, found, n.Requests())
	case len(selected) > 0:
		if err := r.checkEligible(selected[0]); err != nil {
			return nil, err
		}
		if selected[0].IfName != "" && selected[0].IfName != r.req.IfName {
			return nil, r.wrongFirstInterface(wish.PluginsKey, selected[0].Name, selected[0].IfName)
		}
		found, err := r.find.Default(ctx, r.conf.MultusNamespace, selected[0].Name)
		if err != nil {
			return nil, err
		}
		return selected[1:], r.add(ctx, "annotation "+wish.PluginsKey, d, found, nil)
	case r.conf.ClusterNetwork != "":
		found, err := r.find.Default(ctx, r.conf.MultusNamespace, r.conf.ClusterNetwork)
		if err != nil {
			return nil, fmt.Errorf("clusterNetwork: %w", err)
		}
		return nil, r.add(ctx, "clusterNetwork", d, found, nil)
	}
	if len(r.conf.Delegates) == 0 {
		return nil, nil // DEL continues without a default network; ADD failed before
	}
	return nil, r.addInline(0, d)
}

// wrongFirstInterface returns the error for a default network with another interface than the
// runtime's.
func (r *resolver) wrongFirstInterface(key, network, ifName string) error {
	return &roles.ConfError{Path: "annotation " + key, Reason: fmt.Sprintf("%q cannot have interface %q: the first network has the runtime's interface, %q", network, ifName, r.req.IfName)}
}

// setRequests copies a network's requests except interface and runtimeConfig.
func setRequests(d *store.Delegate, n *wish.Network) {
	d.Args, d.Device, d.Gateways, d.NoIPAM = n.Args(), n.DeviceID, n.DefaultRoute, n.Extras.NoIP()
	for _, rt := range n.Extras.PolicyRoutes {
		d.Routes = append(d.Routes, store.PolicyRoute{Dst: rt.Dst, GW: rt.GW})
	}
}

// runtimeConfig returns a copy of the runtime's runtimeConfig for the default network.
func (r *resolver) runtimeConfig() map[string]json.RawMessage {
	out := map[string]json.RawMessage{}
	for key, value := range r.conf.RuntimeConfig {
		out[key] = value
	}
	return out
}

// resolveDefaultNetworks resolves the additional networks of every pod.
func (r *resolver) resolveDefaultNetworks(ctx context.Context) error {
	var errs []error
	if r.conf.ClusterNetwork != "" {
		for i, value := range r.conf.DefaultNetworks {
			path := fmt.Sprintf("defaultNetworks[%d]", i)
			found, err := r.find.Default(ctx, r.conf.MultusNamespace, value)
			if err == nil {
				err = r.add(ctx, path, store.Delegate{}, found, nil)
			} else {
				err = fmt.Errorf("%s: %w", path, err)
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}
	for i := 1; i < len(r.conf.Delegates); i++ {
		errs = append(errs, r.addInline(i, store.Delegate{}))
	}
	return errors.Join(errs...)
}

// addInline adds a network from "delegates".
func (r *resolver) addInline(i int, d store.Delegate) error {
	path := fmt.Sprintf("delegates[%d]", i)
	l, err := netlist.Parse(r.conf.Delegates[i], r.conf.CNIVersion)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	d.Name, d.List, d.Version = l.Name, r.conf.Delegates[i], r.conf.CNIVersion
	r.all, r.origins = append(r.all, d), append(r.origins, path)
	return nil
}

// resolveSelected resolves the networks that the pod selected in addition to the default one.
func (r *resolver) resolveSelected(ctx context.Context, rest []wish.Plugin) error {
	var errs []error
	for _, p := range rest {
		err := r.checkEligible(p)
		if err == nil {
			var found *nad.Network
			if found, err = r.find.Default(ctx, r.conf.MultusNamespace, p.Name); err == nil {
				err = r.add(ctx, "annotation "+wish.PluginsKey, store.Delegate{IfName: p.IfName}, found, nil)
			}
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// resolveRequested resolves one network of the annotation.
func (r *resolver) resolveRequested(ctx context.Context, path string, n *wish.Network) error {
	if r.conf.NamespaceIsolation && n.Namespace != r.namespace && !r.conf.isGlobal(n.Namespace) {
		return &roles.ConfError{Path: path, Reason: fmt.Sprintf("network %q is not in the pod's namespace, %q, and namespaceIsolation is set: add %q to globalNamespaces to allow it", n, r.namespace, n.Namespace)}
	}
	found, err := r.find.Network(ctx, n.Namespace, n.Name)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	d := store.Delegate{IfName: n.IfName, Runtime: n.Requests()}
	setRequests(&d, n)
	return r.add(ctx, path, d, found, n.Requests())
}

// add completes a delegate with the network that was found. A request that no plugin of the network
// supports is a fault (the standard, section 4.1.2.1).
func (r *resolver) add(ctx context.Context, path string, d store.Delegate, found *nad.Network, requests map[string]json.RawMessage) error {
	l, err := netlist.Parse(found.Conf, r.conf.CNIVersion)
	if err != nil {
		return fmt.Errorf("%s: network of %s: %w", path, found.From, err)
	}
	d.Name, d.List, d.Version = l.Name, found.Conf, r.conf.CNIVersion
	if raw := r.conf.RuntimeConfig[annotationsCapability]; len(raw) > 0 && l.Can(annotationsCapability) {
		if d.Runtime == nil {
			d.Runtime = map[string]json.RawMessage{}
		}
		d.Runtime[annotationsCapability] = raw // network policies read labels there
	}
	if found.Namespace != "" {
		d.Name = found.Namespace + "/" + found.Name
	}
	var f roles.Faults
	for key := range requests {
		if !l.Can(key) && key != "deviceID" { // deviceID does not need a capability
			f.Addf(path+"."+key, "network %q does not support this: none of its plugins has it in \"capabilities\" (%s)", d.Name, found.From)
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
		d.Device, err = r.next(ctx, found.Resource)
		if err != nil {
			return fmt.Errorf("%s: network %q: %w", path, d.Name, err)
		}
	}
	r.all, r.origins = append(r.all, d), append(r.origins, path)
	return nil
}

// nameInterfaces sets missing interface names by position, like Multus. Duplicate names are a
// fault.
func (r *resolver) nameInterfaces() error {
	var f roles.Faults
	taken := map[string]int{}
	for i := range r.all {
		name := r.all[i].IfName
		if name == "" {
			continue
		}
		if by, twice := taken[name]; twice {
			f.Addf(r.origins[i]+".interface", "%q is already the interface of network %q (%s): set another one for network %q, or none", name, r.all[by].Name, r.origins[by], r.all[i].Name)
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
