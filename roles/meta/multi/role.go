// Package multi is the meta role of several networks for one pod (types multi and
// multus). It finds out which networks a pod is to have, has their plugins attach
// it to each, and knows at DEL, CHECK and GC what it had asked for: the resolved
// networks are recorded, as they were found, before the first plugin runs.
package multi

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/meta/multi/wish"
)

// annotationsCapability is the runtimeConfig key by which containerd and CRI-O hand a
// pod's annotations over.
const annotationsCapability = "io.kubernetes.cri.pod-annotations"

// Role is the multi role's entry in the table.
func Role() roles.Role {
	return roles.Role{
		Names:   []string{"multi", "multus"},
		Kind:    roles.Meta,
		Summary: "several networks for one pod, by its annotations",
		Capabilities: []string{
			annotationsCapability, "portMappings", "bandwidth", "ips", "mac", "infinibandGUID", "deviceID",
			"ipRanges", "dns", "aliases", "cgroupPath", "podAnnotations",
		},
		Args:    []string{"K8S_POD_INFRA_CONTAINER_ID", "K8S_POD_UID", annotationsArg},
		Conf:    func() any { return new(Conf) },
		Ignored: ignored,
		New: func(raw []byte) (roles.Handler, error) {
			c, err := readConf(raw)
			if err == nil {
				err = c.Validate()
			}
			if err != nil {
				return nil, err
			}
			return &handler{conf: c}, nil
		},
		Undo: func(raw []byte) (roles.Handler, error) {
			c, err := readConf(raw)
			if err != nil && !errors.Is(err, roles.ErrConf) {
				return nil, err
			}
			return &handler{conf: c}, nil
		},
		Verbs: verbs,
	}
}

// handler answers the CNI verbs for one configuration.
type handler struct{ conf *Conf }

// Status asks the plugins of the networks that every pod gets. It needs nothing
// but this node.
func (m *handler) Status(ctx context.Context, h *roles.Host, req *roles.Request) error {
	if err := m.ready(roles.ErrNotAvailable); err != nil {
		return err
	}
	all, err := m.local(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", roles.ErrNotAvailable, err)
	}
	var errs []error
	for _, d := range all {
		l, call, err := m.course(h, req).list(&d)
		if err == nil {
			err = l.Status(ctx, h.Delegate, call)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("network %q: %w", d.Name, err))
		}
	}
	return errors.Join(errs...)
}

// ready makes sure of the readiness file. Runtimes try again by themselves.
func (m *handler) ready(otherwise error) error {
	file := m.conf.ReadinessIndicatorFile
	if file == "" {
		return nil
	}
	if _, err := os.Stat(file); err != nil {
		return fmt.Errorf("%w: the default network is not ready: readinessindicatorfile: %w", otherwise, err)
	}
	return nil
}

// annotationKeys are those that are read.
func annotationKeys() []string { return []string{wish.NetworksKey, wish.DefaultKey, wish.PluginsKey} }
