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
	const name = "network-attachment-definitions.k8s.cni.cncf.io"
	text := map[string]any{"type": "string"}
	s.Must(tb, http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "", map[string]any{
		"metadata": map[string]any{"name": name},
		"spec": map[string]any{
			"group": "k8s.cni.cncf.io", "scope": "Namespaced",
			"names": map[string]any{"plural": "network-attachment-definitions", "singular": "network-attachment-definition", "kind": "NetworkAttachmentDefinition", "shortNames": []string{"net-attach-def"}},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "properties": map[string]any{
					"apiVersion": text, "kind": text, "metadata": map[string]any{"type": "object"},
					"spec": map[string]any{"type": "object", "properties": map[string]any{"config": text}},
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
		if err := json.Unmarshal(s.Must(tb, http.MethodGet, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"+name, "", nil), &crd); err != nil {
			tb.Fatal(err)
		}
		for _, c := range crd.Status.Conditions {
			if c.Type == "Established" && c.Status == "True" {
				// The server serves the type a moment later.
				_, err := s.Do(http.MethodGet, "/apis/k8s.cni.cncf.io/v1/network-attachment-definitions", "", nil)
				return err == nil
			}
		}
		return false
	}, func() string { return fmt.Sprintf("NetworkAttachmentDefinitions are not served: %+v", crd) })
}
