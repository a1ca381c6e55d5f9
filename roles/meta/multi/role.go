// Package multi is the meta role for several networks per pod, with the types multi and multus. It
// resolves the pod's networks and runs the plugins of each. The resolved networks are recorded
// before the first plugin runs. DEL, CHECK and GC use that record.
package multi

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/meta/multi/wish"
)

// annotationsCapability is the runtimeConfig key with which containerd and CRI-O pass a pod's
// annotations.
const annotationsCapability = "io.kubernetes.cri.pod-annotations"

// Role returns the multi role's entry in the table of roles.
func Role() roles.Role {
	return roles.Role{
		Names:   []string{"multi", "multus"},
		Kind:    roles.Meta,
		Summary: "attaches pods to several networks by their annotations",
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

// handler implements the CNI verbs for one configuration.
type handler struct{ conf *Conf }

// Status runs STATUS of the networks of every pod. It sends no request to the API server.
func (m *handler) Status(ctx context.Context, h *roles.Host, req *roles.Request) error {
	if err := m.checkReady(roles.ErrNotAvailable); err != nil {
		return err
	}
	all, err := m.localNetworks(ctx)
	if err = errors.Join(err, h.Store.CheckStateDir()); err != nil { // ADD records the networks there
		return fmt.Errorf("%w: %w", roles.ErrNotAvailable, err)
	}
	var errs []error
	for _, d := range all {
		l, call, err := m.newRunner(h, req).list(&d)
		if err == nil {
			err = l.Status(ctx, h.Delegate, call)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("network %q: %w", d.Name, err))
		}
	}
	return errors.Join(errs...)
}

// checkReady returns the given error if the readiness file does not exist. Runtimes repeat the
// call.
func (m *handler) checkReady(otherwise error) error {
	file := m.conf.ReadinessIndicatorFile
	if file == "" {
		return nil
	}
	if _, err := os.Stat(file); err != nil {
		return fmt.Errorf("%w: the default network is not ready: readinessindicatorfile: %w", otherwise, err)
	}
	return nil
}

// annotationKeys returns the keys of annotations that are read.
func annotationKeys() []string { return []string{wish.NetworksKey, wish.DefaultKey, wish.PluginsKey} }
