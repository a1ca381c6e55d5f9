package multi

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/meta/multi/nad"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
)

// kubernetes is the Kubernetes API.
type kubernetes struct{ *rest.Client }

// api is the API server that the configuration names, or nil. Nothing is asked yet.
func (m *handler) api() (cluster, error) {
	if m.conf.Kubeconfig == "" {
		return nil, nil
	}
	c, err := rest.Open(rest.Kubeconfig(m.conf.Kubeconfig))
	if err != nil {
		return nil, &roles.ConfError{Path: "kubeconfig", Reason: err.Error()}
	}
	return kubernetes{c}, nil
}

// Object reads a NetworkAttachmentDefinition.
func (k kubernetes) Object(ctx context.Context, namespace, name string) (*nad.Object, error) {
	n, err := k.Network(ctx, namespace, name)
	if errors.Is(err, rest.ErrNotFound) {
		return nil, fmt.Errorf("%w at the API server", nad.ErrNotFound)
	}
	if err != nil {
		return nil, unreached(err)
	}
	return &nad.Object{
		Namespace: namespace, Name: name, Annotations: maps.Clone(n.Metadata.Annotations), Config: []byte(n.Spec.Config),
		From: "the API server's " + namespace + "/" + name,
	}, nil
}

// Annotations reads a pod's. One of the same name with another UID has taken its
// place: the call comes too late.
func (k kubernetes) Annotations(ctx context.Context, namespace, pod, uid string) (map[string]string, error) {
	p, err := k.Pod(ctx, namespace, pod)
	if errors.Is(err, rest.ErrNotFound) {
		return nil, fmt.Errorf("%w: %w", roles.ErrUnknownContainer, err)
	}
	if err != nil {
		return nil, unreached(err)
	}
	const mirror = "kubernetes.io/config.mirror" // a static pod's, whose UID kubelet makes itself
	if _, static := p.Metadata.Annotations[mirror]; uid != "" && p.Metadata.UID != uid && !static {
		return nil, fmt.Errorf("%w: pod %s/%s has UID %q, not %q: it was made anew", roles.ErrUnknownContainer, namespace, pod, p.Metadata.UID, uid)
	}
	return p.Metadata.Annotations, nil
}

// Annotate sets one annotation.
func (k kubernetes) Annotate(ctx context.Context, namespace, pod, uid, key, value string) error {
	err := k.AnnotatePod(ctx, namespace, pod, uid, map[string]*string{key: &value})
	if errors.Is(err, rest.ErrNotFound) {
		return nil
	}
	return err
}

// unreached has the runtime try again.
func unreached(err error) error { return fmt.Errorf("%w: %w", roles.ErrTryAgain, err) }
