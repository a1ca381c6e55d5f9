package nad

import (
	"bytes"
	"encoding/json"

	"github.com/cnibox/cnibox/internal/coldjson"
	"github.com/cnibox/cnibox/internal/yaml"
	"github.com/cnibox/cnibox/roles"
)

const (
	// Kind and APIVersion identify the object's type.
	Kind       = "NetworkAttachmentDefinition"
	APIVersion = "k8s.cni.cncf.io/v1"
)

// manifest is the Kubernetes form of the object.
type manifest struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name        string            `json:"name"`
		Namespace   string            `json:"namespace"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		Config json.RawMessage `json:"config"`
	} `json:"spec"`
}

// fromFile parses a file of a Dir.
func fromFile(raw []byte, namespace, name string) (*Object, error) {
	doc, err := yaml.ToJSON(raw)
	if err != nil {
		return nil, err
	}
	var m manifest
	if err := roles.Decode(doc, &m); err != nil {
		return nil, err
	}
	if m.Kind == "" && m.APIVersion == "" {
		if _, err := readConf(doc); err != nil {
			return nil, err
		}
		return &Object{Namespace: namespace, Name: name, Config: doc}, nil
	}
	o, err := m.object()
	if err != nil {
		return nil, err
	}
	var f roles.Faults
	if o.Name != name {
		f.Addf("metadata.name", "%q is not the file's name without its extension", o.Name)
	}
	if o.Namespace != "" && o.Namespace != namespace {
		f.Addf("metadata.namespace", "%q is not the name of the file's directory", o.Namespace)
	}
	o.Namespace = namespace
	return o, f.Err()
}

func (m *manifest) object() (*Object, error) {
	var f roles.Faults
	if m.APIVersion != APIVersion {
		f.Addf("apiVersion", "%q is not known: use %q", m.APIVersion, APIVersion)
	}
	if m.Kind != Kind {
		f.Addf("kind", "%q is not known: use %q, one in a file", m.Kind, Kind)
	}
	o := &Object{Namespace: m.Metadata.Namespace, Name: m.Metadata.Name, Annotations: m.Metadata.Annotations}
	if c := bytes.TrimSpace(m.Spec.Config); len(c) > 0 && string(c) != "null" {
		var text string
		if err := coldjson.Unmarshal(c, &text); err != nil {
			f.Addf("spec.config", "must be a string with the JSON of a CNI configuration: quote it, or begin it with \"|\" in YAML")
		}
		o.Config = []byte(text)
	}
	return o, f.Err()
}
