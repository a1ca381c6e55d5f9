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

// api returns a client for the configured API server, or nil. It sends no request.
func (m *handler) api() (kubeAPI, error) {
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
		return nil, tryAgain(err)
	}
	return &nad.Object{
		Namespace: namespace, Name: name, Annotations: maps.Clone(n.Metadata.Annotations), Config: []byte(n.Spec.Config),
		From: "the API server's " + namespace + "/" + name,
	}, nil
}

// Annotations reads the pod's annotations. If the pod has another UID, it was replaced by a new pod
// of the same name, and the call is too late.
func (k kubernetes) Annotations(ctx context.Context, namespace, pod, uid string) (map[string]string, error) {
	p, err := k.Pod(ctx, namespace, pod)
	if errors.Is(err, rest.ErrNotFound) {
		return nil, fmt.Errorf("%w: %w", roles.ErrUnknownContainer, err)
	}
	if err != nil {
		return nil, tryAgain(err)
	}
	const mirror = "kubernetes.io/config.mirror" // the annotation of a static pod, whose UID kubelet generates
	if _, static := p.Metadata.Annotations[mirror]; uid != "" && p.Metadata.UID != uid && !static {
		return nil, fmt.Errorf("%w: pod %s/%s has UID %q, not %q: the pod was replaced", roles.ErrUnknownContainer, namespace, pod, p.Metadata.UID, uid)
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

// tryAgain makes the runtime repeat the call.
func tryAgain(err error) error { return fmt.Errorf("%w: %w", roles.ErrTryAgain, err) }
