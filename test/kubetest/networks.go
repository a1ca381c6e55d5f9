package kubetest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/test/await"
)

// InstallNetworks installs the type NetworkAttachmentDefinition as the Kubernetes Network Custom Resource Definition De-facto
// Standard (version 1.3, section 3.4) defines it.
func (s *Server) InstallNetworks(tb testing.TB) {
	tb.Helper()
	text := map[string]any{"type": "string"}
	s.install(tb, "network-attachment-definitions", "NetworkAttachmentDefinition", map[string]any{
		"name": "v1", "served": true, "storage": true,
		"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "properties": map[string]any{
			"apiVersion": text, "kind": text, "metadata": map[string]any{"type": "object"},
			"spec": map[string]any{"type": "object", "properties": map[string]any{"config": text}},
		}}},
	}, "net-attach-def")
}

// InstallIPAMClaims installs the type IPAMClaim as github.com/k8snetworkplumbingwg/ipamclaims defines it
// (artifacts/k8s.cni.cncf.io_ipamclaims.yaml).
func (s *Server) InstallIPAMClaims(tb testing.TB) {
	tb.Helper()
	text := map[string]any{"type": "string"}
	list := func(of any) map[string]any { return map[string]any{"type": "array", "items": of} }
	object := func(properties map[string]any, required ...string) map[string]any {
		return map[string]any{"type": "object", "properties": properties, "required": required}
	}
	condition := object(map[string]any{
		"type": text, "reason": map[string]any{"type": "string", "minLength": 1}, "message": text, "observedGeneration": map[string]any{"type": "integer"},
		"status": map[string]any{"type": "string", "enum": []string{"True", "False", "Unknown"}}, "lastTransitionTime": map[string]any{"type": "string", "format": "date-time"},
	}, "lastTransitionTime", "message", "reason", "status", "type")
	s.install(tb, "ipamclaims", "IPAMClaim", map[string]any{
		"name": "v1alpha1", "served": true, "storage": true, "subresources": map[string]any{"status": map[string]any{}},
		"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "properties": map[string]any{
			"apiVersion": text, "kind": text, "metadata": map[string]any{"type": "object"},
			"spec": object(map[string]any{"network": text, "interface": text}, "interface", "network"),
			"status": object(map[string]any{
				"ips": list(text), "ownerPod": object(map[string]any{"name": text}), "conditions": list(condition),
			}, "ips"),
		}}},
	})
}

// install installs a namespaced type of the group k8s.cni.cncf.io and waits until it is served.
func (s *Server) install(tb testing.TB, plural, kind string, version map[string]any, short ...string) {
	tb.Helper()
	name := plural + ".k8s.cni.cncf.io"
	s.Must(tb, http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "", map[string]any{
		"metadata": map[string]any{"name": name},
		"spec": map[string]any{
			"group": "k8s.cni.cncf.io", "scope": "Namespaced", "versions": []any{version},
			"names": map[string]any{"plural": plural, "singular": strings.ToLower(kind), "kind": kind, "shortNames": short},
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
				_, err := s.Do(http.MethodGet, fmt.Sprintf("/apis/k8s.cni.cncf.io/%s/%s", version["name"], plural), "", nil)
				return err == nil
			}
		}
		return false
	}, func() string { return fmt.Sprintf("%s are not served: %+v", plural, crd) })
}
