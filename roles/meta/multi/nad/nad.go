// Package nad finds the configuration of a network by its name: in
// NetworkAttachmentDefinition objects (the Kubernetes Network Custom Resource
// Definition De-facto Standard, version 1.3: "the standard") of a directory or of
// the Kubernetes API, and in the node's own configuration files.
//
// Configurations are handed on byte by byte. Files are read from below their
// directory only, and only if nobody but root can write them: a configuration
// names programs that run as root, and its name comes from a pod.
package nad

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/cnibox/cnibox/internal/rawjson"
	"github.com/cnibox/cnibox/roles"
)

// ResourceKey is the annotation of a NetworkAttachmentDefinition that names the
// device plugin's resource of which the pod holds a device.
const ResourceKey = "k8s.v1.cni.cncf.io/resourceName"

// ErrNotFound: no network of that name; the text tells where it was looked for.
var ErrNotFound = errors.New("network not found")

// Object is a NetworkAttachmentDefinition.
type Object struct {
	Namespace, Name string
	// Annotations are the object's; ResourceKey is one that matters.
	Annotations map[string]string
	// Config is spec.config, byte by byte. Empty means that a file of the node
	// holds the configuration.
	Config []byte
	// From tells where the object is, for messages: a path or an address.
	From string
}

// Source holds NetworkAttachmentDefinitions.
type Source interface {
	// Object is the object of that name. ErrNotFound means that the source
	// answered, and has none; any other error that it could not answer, or that
	// the object is no good.
	Object(ctx context.Context, namespace, name string) (*Object, error)
}

// Network is a network that was found.
type Network struct {
	// Namespace and Name are the object's; both are empty for a network of the
	// node's own files.
	Namespace, Name string
	// Conf is its configuration, a list or that of one plugin (CNI spec 1.1.0,
	// section 1), byte by byte as it was written. Only a name that is missing is
	// put in: the object's.
	Conf []byte
	// Resource is the object's ResourceKey, or empty.
	Resource string
	// From tells where it was found, for messages.
	From string
}

// conf is what is read of a configuration here.
type conf struct {
	Name    string `json:"name"`
	Type    string `json:"type"`
	Plugins []conf `json:"plugins"`
}

// types are those of its plugins, and of the plugins of a fused list.
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

// readConf decodes a configuration as far as it matters here.
func readConf(raw []byte) (*conf, error) {
	var c conf
	if err := roles.Decode(raw, &c); err != nil {
		return nil, err
	}
	if c.Type == "" && len(c.Plugins) == 0 {
		return nil, &roles.ConfError{Path: "type", Reason: "is missing, and plugins too: name one plugin, or a list of them"}
	}
	return &c, nil
}

// named puts a name into a configuration that has none (the standard, section
// 3.4.2).
func named(raw []byte, c *conf, name string) ([]byte, error) {
	if c.Name != "" {
		return raw, nil
	}
	return rawjson.Set(raw, "name", []byte(`"`+name+`"`))
}

// isName tells whether s is the name of an object, or with label that of a
// namespace, as Kubernetes has them. Such a name is one part of a path and
// cannot be "." or "..".
func isName(s string, label bool) bool {
	if s == "" || len(s) > 253 || label && (len(s) > 63 || strings.Contains(s, ".")) {
		return false
	}
	for part := range strings.SplitSeq(s, ".") {
		if part == "" || part[0] == '-' || part[len(part)-1] == '-' ||
			strings.ContainsFunc(part, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' }) {
			return false
		}
	}
	return true
}

// errSelf refuses a configuration of the plugin that asks.
func errSelf(from, typ string) error {
	return fmt.Errorf("%s: its plugin %q is the one that asks for networks: name a network of another plugin", from, typ)
}
