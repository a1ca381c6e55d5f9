package multi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/meta/multi/nad"
	"github.com/cnibox/cnibox/roles/meta/multi/wish"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
)

// annotationsArg is the key of CNI_ARGS with annotations as a JSON object (CNI-Genie).
const annotationsArg = "K8S_ANNOT"

// kubeAPI has the requests to the Kubernetes API.
type kubeAPI interface {
	nad.Source
	// Annotations returns the pod's annotations. uid is empty if the runtime does not pass it.
	Annotations(ctx context.Context, namespace, pod, uid string) (map[string]string, error)
	// NodeName returns the pod's node.
	NodeName(ctx context.Context, namespace, pod string) (string, error)
	// ResourceSlices returns the devices that a driver publishes on a node.
	ResourceSlices(ctx context.Context, node, driver string) ([]rest.ResourceSlice, error)
	// Annotate sets one annotation of the pod. A deleted pod is not an error.
	Annotate(ctx context.Context, namespace, pod, uid, key, value string) error
}

// annotations returns the pod's annotations. The first source that has them is used: the runtime,
// CNI_ARGS, args.cni, the API.
func (m *handler) annotations(ctx context.Context, req *roles.Request, api kubeAPI) (map[string]string, error) {
	for _, key := range []string{annotationsCapability, "podAnnotations"} {
		if raw, ok := m.conf.RuntimeConfig[key]; ok {
			return decodeAnnotations("runtimeConfig."+key, raw)
		}
	}
	if v := req.Args.Get(annotationsArg); v != "" {
		a, err := decodeAnnotations("CNI_ARGS: "+annotationsArg, json.RawMessage(v))
		if err != nil {
			return nil, &roles.EnvError{Name: "CNI_ARGS: " + annotationsArg, Reason: strings.TrimPrefix(err.Error(), "CNI_ARGS: "+annotationsArg+": ")}
		}
		return a, nil
	}
	given := map[string]string{}
	for _, key := range annotationKeys() {
		raw, ok := m.conf.Args.CNI[key]
		if !ok {
			continue
		}
		var text string
		if json.Unmarshal(raw, &text) != nil {
			text = string(raw) // a JSON list instead of a string
		}
		given[key] = text
	}
	ns, pod := req.Args.Get("K8S_POD_NAMESPACE"), req.Args.Get("K8S_POD_NAME")
	if len(given) > 0 || api == nil || ns == "" || pod == "" {
		return given, nil
	}
	return api.Annotations(ctx, ns, pod, req.Args.Get("K8S_POD_UID"))
}

func decodeAnnotations(path string, raw json.RawMessage) (map[string]string, error) {
	var a map[string]string
	if err := json.Unmarshal(raw, &a); err != nil {
		return nil, &roles.ConfError{Path: path, Reason: roles.Mismatch(err).Error()}
	}
	return a, nil
}

// requests returns the pod's requested networks. The annotation for eligible networks is read only
// if some are configured, because another program may use its name.
func (m *handler) requests(annotations map[string]string, namespace string) (*wish.Wishes, []wish.Plugin, error) {
	w, err := wish.Parse(annotations, namespace)
	if len(m.conf.EligibleNetworks) == 0 {
		return w, nil, err
	}
	chosen, perr := wish.ParsePlugins(annotations[wish.PluginsKey])
	return w, chosen, errors.Join(err, perr)
}

// finder returns a Finder for the configured sources.
func (m *handler) finder(api kubeAPI) *nad.Finder {
	f := &nad.Finder{Sources: []nad.Source{nad.Dir(m.conf.NetworksDir)}, ConfDir: m.conf.ConfDir, Self: Role().Names}
	if api != nil {
		f.Sources = append(f.Sources, api)
	}
	return f
}

// checkEligible reports an error if a pod may not select a default network.
func (m *handler) checkEligible(p wish.Plugin) error {
	for _, name := range m.conf.EligibleNetworks {
		if name == p.Name {
			return nil
		}
	}
	return &roles.ConfError{Path: "annotation " + wish.PluginsKey, Reason: fmt.Sprintf("a pod cannot select %q: it can select %s", p.Name, strings.Join(m.conf.EligibleNetworks, ", "))}
}
