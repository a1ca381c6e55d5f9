package kubetest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/cnibox/cnibox/test/await"
)

// InstallNetworks installs the type NetworkAttachmentDefinition as the Kubernetes Network Custom Resource Definition De-facto
// Standard (version 1.3, section 3.4) defines it.
func (s *Server) InstallNetworks(tb testing.TB) {
	tb.Helper()
	s.install(tb, "k8s.cni.cncf.io", "v1", "network-attachment-definition", "NetworkAttachmentDefinition", map[string]any{"config": text})
}

// InstallWhereabouts installs the types of whereabouts v0.8.0.
func (s *Server) InstallWhereabouts(tb testing.TB) {
	tb.Helper()
	const group = "whereabouts.cni.cncf.io"
	allocation := map[string]any{"type": "object", "properties": map[string]any{"id": text, "ifname": text, "podref": text}, "required": []string{"id", "podref"}}
	s.install(tb, group, "v1alpha1", "ippool", "IPPool", map[string]any{"range": text, "allocations": map[string]any{"type": "object", "additionalProperties": allocation}}, "allocations", "range")
	s.install(tb, group, "v1alpha1", "overlappingrangeipreservation", "OverlappingRangeIPReservation", map[string]any{"containerid": text, "ifname": text, "podref": text}, "podref")
}

var text = map[string]any{"type": "string"}

// install installs a type with properties of its specification, and waits until the server serves it.
func (s *Server) install(tb testing.TB, group, version, singular, kind string, properties map[string]any, required ...string) {
	tb.Helper()
	plural := singular + "s"
	spec := map[string]any{"type": "object", "properties": properties}
	if len(required) > 0 {
		spec["required"] = required
	}
	const crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	name := plural + "." + group
	s.Must(tb, http.MethodPost, crds, "", map[string]any{
		"metadata": map[string]any{"name": name},
		"spec": map[string]any{
			"group": group, "scope": "Namespaced",
			"names": map[string]any{"plural": plural, "singular": singular, "kind": kind},
			"versions": []any{map[string]any{
				"name": version, "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "properties": map[string]any{
					"apiVersion": text, "kind": text, "metadata": map[string]any{"type": "object"}, "spec": spec,
				}}},
			}},
		},
	}, http.StatusConflict)
	var crd struct {
		Status struct {
			Conditions []struct{ Type, Status string }
		}
	}
	await.Until(tb, func() bool {
		if err := json.Unmarshal(s.Must(tb, http.MethodGet, crds+"/"+name, "", nil), &crd); err != nil {
			tb.Fatal(err)
		}
		for _, c := range crd.Status.Conditions {
			if c.Type == "Established" && c.Status == "True" {
				// The server serves the type a moment later.
				_, err := s.Do(http.MethodGet, "/apis/"+group+"/"+version+"/"+plural, "", nil)
				return err == nil
			}
		}
		return false
	}, func() string { return fmt.Sprintf("%s is not served: %+v", name, crd) })
}
