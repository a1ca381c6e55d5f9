package kube

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
)

// DefaultNamespace has the pages of cluster-wide ranges by default.
const DefaultNamespace = "cnibox-ranges"

// A page of a cluster-wide range is a ConfigMap, because that kind needs no installation.
const (
	pagePrefix = "cnibox-range-"
	pageKey    = "page"
	pageLabel  = "cnibox.io/range"
)

// configMap has the fields of a page's ConfigMap.
type configMap struct {
	rest.Object
	Data map[string]string `json:"data"`
}

// pageWrite is a page's ConfigMap as it is created, or a merge patch of one.
type pageWrite struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name            string            `json:"name"`
		ResourceVersion string            `json:"resourceVersion,omitempty"`
		Labels          map[string]string `json:"labels"`
	} `json:"metadata"`
	Data map[string]string `json:"data"`
}

// pages is the ConfigMaps of the pages in a namespace. The version of a page is its resourceVersion.
type pages struct {
	client    *rest.Client
	namespace string
}

// Pages returns the ConfigMaps of the pages.
func (r *Registry) Pages() cluster.Collection { return pages{r.client, r.namespace} }

// path returns the path of a page's ConfigMap, or of all without a name.
func (p pages) path(name ...string) string {
	return rest.Path(append([]string{"api", "v1", "namespaces", p.namespace, "configmaps"}, name...)...)
}

// List needs the verb list on configmaps of the namespace.
func (p pages) List(ctx context.Context, each func(name string, text []byte, version string)) error {
	where := url.Values{"labelSelector": {pageLabel}}
	_, err := rest.ListWhere(ctx, p.client, p.path(), where, func(m *configMap) {
		if name, ok := cluster.CutPageName(pagePrefix, m.Metadata.Name); ok {
			each(name, []byte(m.Data[pageKey]), m.Metadata.ResourceVersion)
		}
	})
	if err != nil {
		return fmt.Errorf("list ranges in namespace %s: %w", p.namespace, err)
	}
	return nil
}

// Read needs the verb get on configmaps of the namespace.
func (p pages) Read(ctx context.Context, name string) (text []byte, version string, err error) {
	if err := rest.CheckName("page", name); err != nil {
		return nil, "", err
	}
	var m configMap
	err = p.client.Get(ctx, p.path(pagePrefix+name), &m)
	if errors.Is(err, rest.ErrNotFound) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("read range in ConfigMap %s/%s%s: %w", p.namespace, pagePrefix, name, err)
	}
	return []byte(m.Data[pageKey]), m.Metadata.ResourceVersion, nil
}

// Write needs the verbs create and patch on configmaps of the namespace.
func (p pages) Write(ctx context.Context, name string, text []byte, version string) (next string, err error) {
	if err := rest.CheckName("page", name); err != nil {
		return "", err
	}
	if text == nil {
		return "", fmt.Errorf("delete range in ConfigMap %s/%s%s: %w", p.namespace, pagePrefix, name, errors.ErrUnsupported)
	}
	w := pageWrite{APIVersion: "v1", Kind: "ConfigMap", Data: map[string]string{pageKey: string(text)}}
	w.Metadata.Name, w.Metadata.ResourceVersion, w.Metadata.Labels = pagePrefix+name, version, map[string]string{pageLabel: "page"}
	var written rest.Object
	if version == "" {
		err = p.client.Create(ctx, p.path(), &w, &written)
	} else {
		err = p.client.Patch(ctx, p.path(w.Metadata.Name), rest.MergePatch, &w, &written)
	}
	if errors.Is(err, rest.ErrConflict) || version != "" && errors.Is(err, rest.ErrNotFound) {
		return "", cluster.ErrRaced
	}
	if err != nil {
		return "", fmt.Errorf("write range to ConfigMap %s/%s: %w", p.namespace, w.Metadata.Name, err)
	}
	return written.Metadata.ResourceVersion, nil
}

// Join does nothing: the Node object is the record that the node exists.
func (r *Registry) Join(context.Context) error { return nil }

// Gone reports whether there is no Node object.
func (r *Registry) Gone(ctx context.Context, node string) (bool, error) {
	if err := rest.CheckName("node name", node); err != nil {
		return false, err
	}
	err := r.client.Get(ctx, rest.Path("api", "v1", "nodes", node), &rest.Object{})
	if errors.Is(err, rest.ErrNotFound) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("get node %s: %w", node, err)
	}
	return false, nil
}
