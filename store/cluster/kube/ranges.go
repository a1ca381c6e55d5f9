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

func (r *Registry) pages(name ...string) string {
	return rest.Path(append([]string{"api", "v1", "namespaces", r.namespace, "configmaps"}, name...)...)
}

// Pages needs the verb list on configmaps of the namespace.
func (r *Registry) Pages(ctx context.Context, each func(name string, page []byte)) error {
	where := url.Values{"labelSelector": {pageLabel}}
	_, err := rest.ListWhere(ctx, r.client, r.pages(), where, func(m *configMap) {
		if name, ok := cluster.CutPageName(pagePrefix, m.Metadata.Name); ok {
			each(name, []byte(m.Data[pageKey]))
		}
	})
	if err != nil {
		return fmt.Errorf("list ranges in namespace %s: %w", r.namespace, err)
	}
	return nil
}

// ReadPage needs the verb get on configmaps of the namespace.
func (r *Registry) ReadPage(ctx context.Context, name string) (page []byte, version string, err error) {
	var m configMap
	err = r.client.Get(ctx, r.pages(pagePrefix+name), &m)
	if errors.Is(err, rest.ErrNotFound) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("read range in ConfigMap %s/%s%s: %w", r.namespace, pagePrefix, name, err)
	}
	return []byte(m.Data[pageKey]), m.Metadata.ResourceVersion, nil
}

// WritePage needs the verbs create and patch on configmaps of the namespace.
func (r *Registry) WritePage(ctx context.Context, name string, page []byte, version string) error {
	w := pageWrite{APIVersion: "v1", Kind: "ConfigMap", Data: map[string]string{pageKey: string(page)}}
	w.Metadata.Name, w.Metadata.ResourceVersion, w.Metadata.Labels = pagePrefix+name, version, map[string]string{pageLabel: "page"}
	var err error
	if version == "" {
		err = r.client.Create(ctx, r.pages(), &w, nil)
	} else {
		err = r.client.Patch(ctx, r.pages(w.Metadata.Name), rest.MergePatch, &w, nil)
	}
	if errors.Is(err, rest.ErrConflict) || version != "" && errors.Is(err, rest.ErrNotFound) {
		return cluster.ErrRaced
	}
	if err != nil {
		return fmt.Errorf("write range to ConfigMap %s/%s: %w", r.namespace, w.Metadata.Name, err)
	}
	return nil
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
