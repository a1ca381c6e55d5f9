// Package nad finds the configuration of a network by its name: in
// NetworkAttachmentDefinition objects (the Kubernetes Network Custom Resource
// Definition De-facto Standard, version 1.3) of a directory or of the Kubernetes
// API, and in the node's own configuration files.
package nad

import (
	"context"
	"errors"
)

// ResourceKey is the annotation of a NetworkAttachmentDefinition that names the
// device plugin's resource of which the pod holds a device.
const ResourceKey = "k8s.v1.cni.cncf.io/resourceName"

// ErrNotFound: no source knows a network of that name.
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
	// answered, and has none; any other error that it could not answer.
	Object(ctx context.Context, namespace, name string) (*Object, error)
}

// Network is a network that was found.
type Network struct {
	// Namespace and Name are the object's; Namespace is empty for a network of
	// the node's own files.
	Namespace, Name string
	// List is a network configuration list (CNI spec 1.1.0, section 1). Its
	// plugins are byte by byte as they were written; it always has a name.
	List []byte
	// Resource is the object's ResourceKey, or empty.
	Resource string
	// From tells where it was found, for messages.
	From string
}
