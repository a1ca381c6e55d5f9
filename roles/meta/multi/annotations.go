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
)

// annotationsArg is the key of CNI_ARGS that holds annotations as a JSON object, as
// CNI-Genie has it.
const annotationsArg = "K8S_ANNOT"

// cluster is the Kubernetes API as far as it is asked.
type cluster interface {
	nad.Source
	// Annotations are the pod's; uid is empty where the runtime did not tell it.
	Annotations(ctx context.Context, namespace, pod, uid string) (map[string]string, error)
	// Annotate sets one annotation of the pod. A pod that is gone is no error.
	Annotate(ctx context.Context, namespace, pod, uid, key, value string) error
}

// annotations are the pod's, from whoever knows them: the runtime, else CNI_ARGS or
// args.cni, else the API.
func (m *handler) annotations(ctx context.Context, req *roles.Request, api cluster) (map[string]string, error) {
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
			text = string(raw) // the list itself, where a person wrote it
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

// wishes are the pod's. The choice among eligible networks is read where there are
// any: other people's pods may have an annotation of that name.
func (m *handler) wishes(annotations map[string]string, namespace string) (*wish.Wishes, []wish.Plugin, error) {
	w, err := wish.Parse(annotations, namespace)
	if len(m.conf.EligibleNetworks) == 0 {
		return w, nil, err
	}
	chosen, perr := wish.ParsePlugins(annotations[wish.PluginsKey])
	return w, chosen, errors.Join(err, perr)
}

// finder looks for networks where the configuration says.
func (m *handler) finder(api cluster) *nad.Finder {
	f := &nad.Finder{Sources: []nad.Source{nad.Dir(m.conf.NetworksDir)}, ConfDir: m.conf.ConfDir, Self: Role().Names}
	if api != nil {
		f.Sources = append(f.Sources, api)
	}
	return f
}

// eligible makes sure that a pod may choose a default network.
func (m *handler) eligible(p wish.Plugin) error {
	for _, name := range m.conf.EligibleNetworks {
		if name == p.Name {
			return nil
		}
	}
	return &roles.ConfError{Path: "annotation " + wish.PluginsKey, Reason: fmt.Sprintf("%q is no network that a pod may choose: those are %s", p.Name, strings.Join(m.conf.EligibleNetworks, ", "))}
}
