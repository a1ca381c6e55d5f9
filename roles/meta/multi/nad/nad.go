// Package nad finds a network's configuration by name. The sources are NetworkAttachmentDefinition
// objects from a directory or the Kubernetes API, and the node's configuration files. The objects
// follow the Kubernetes Network Custom Resource Definition De-facto Standard, version 1.3 ("the
// standard").
//
// Configurations are passed on byte by byte. A configuration names programs that run as root, and
// its name comes from a pod. Therefore files are read only inside their directory, and only if no
// user but root can write them.
package nad

import (
	"context"
	"errors"
	"fmt"

	"github.com/cnibox/cnibox/internal/rawjson"
	"github.com/cnibox/cnibox/roles"
)

// ResourceKey is the annotation of a NetworkAttachmentDefinition with the device plugin's resource
// that the pod needs.
const ResourceKey = "k8s.v1.cni.cncf.io/resourceName"

// ErrNotFound means that no source has a network of that name. The message lists the searched
// places.
var ErrNotFound = errors.New("network not found")

// Object is a NetworkAttachmentDefinition.
type Object struct {
	Namespace, Name string
	// Annotations are the object's annotations. Only ResourceKey is used.
	Annotations map[string]string
	// Config is spec.config, unchanged. If it is empty, a file of the node has the configuration.
	Config []byte
	// From is the path or address of the object for messages.
	From string
}

// Source provides NetworkAttachmentDefinitions.
type Source interface {
	// Object returns the object of that name. ErrNotFound means that the source does not have it.
	// Any other error means that the source cannot answer or the object is invalid.
	Object(ctx context.Context, namespace, name string) (*Object, error)
}

// Network is a found network.
type Network struct {
	// Namespace and Name are the object's. Both are empty for a network from the node's own files.
	Namespace, Name string
	// Conf is the configuration of a list or of one plugin (CNI spec 1.1.0, section 1). It is
	// unchanged, except that a missing name is set to the object's.
	Conf []byte
	// Resource is the object's ResourceKey, or empty.
	Resource string
	// From is the path or address of the network for messages.
	From string
}

// conf has the required part of a configuration.
type conf struct {
	Name    string `json:"name"`
	Type    string `json:"type"`
	Plugins []conf `json:"plugins"`
}

// types returns the types of the plugins, including those of a fused list.
func (c *conf) types() []string {
	if c.Plugins == nil {
		return []string{c.Type}
	}
	var out []string
	for _, p := range c.Plugins {
		out = append(out, p.types()...)
	}
	return out
}

// readConf decodes the required part of a configuration.
func readConf(raw []byte) (*conf, error) {
	var c conf
	if err := roles.Decode(raw, &c); err != nil {
		return nil, err
	}
	if c.Type == "" && len(c.Plugins) == 0 {
		return nil, &roles.ConfError{Path: "type", Reason: "is missing: set type, or plugins for a list"}
	}
	return &c, nil
}

// withName adds a name to a configuration without one (the standard, section 3.4.2).
func withName(raw []byte, c *conf, name string) ([]byte, error) {
	if c.Name != "" {
		return raw, nil
	}
	return rawjson.Set(raw, "name", []byte(`"`+name+`"`))
}

// errSelf returns the error for a configuration of the calling plugin.
func errSelf(from, typ string) error {
	return fmt.Errorf("%s: its plugin %q is this plugin: use a network of another plugin", from, typ)
}
