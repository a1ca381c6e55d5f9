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
	s.install(tb, networksGroup, "v1", "network-attachment-definitions", "NetworkAttachmentDefinition", properties{"spec": object(properties{"config": text})}, "net-attach-def")
}

// InstallIPAMClaims installs the type IPAMClaim as github.com/k8snetworkplumbingwg/ipamclaims defines it
// (artifacts/k8s.cni.cncf.io_ipamclaims.yaml).
func (s *Server) InstallIPAMClaims(tb testing.TB) {
	tb.Helper()
	condition := object(properties{
		"type": text, "reason": properties{"type": "string", "minLength": 1}, "message": text, "observedGeneration": properties{"type": "integer"},
		"status": properties{"type": "string", "enum": []string{"True", "False", "Unknown"}}, "lastTransitionTime": properties{"type": "string", "format": "date-time"},
	}, "lastTransitionTime", "message", "reason", "status", "type")
	list := func(of any) properties { return properties{"type": "array", "items": of} }
	s.install(tb, networksGroup, "v1alpha1", "ipamclaims", "IPAMClaim", properties{
		"spec":   object(properties{"network": text, "interface": text}, "interface", "network"),
		"status": object(properties{"ips": list(text), "ownerPod": object(properties{"name": text}), "conditions": list(condition)}, "ips"),
	})
}

// InstallWhereabouts installs the types of whereabouts v0.8.0.
func (s *Server) InstallWhereabouts(tb testing.TB) {
	tb.Helper()
	const group = "whereabouts.cni.cncf.io"
	allocation := object(properties{"id": text, "ifname": text, "podref": text}, "id", "podref")
	allocations := properties{"type": "object", "additionalProperties": allocation}
	s.install(tb, group, "v1alpha1", "ippools", "IPPool", properties{"spec": object(properties{"range": text, "allocations": allocations}, "allocations", "range")})
	s.install(tb, group, "v1alpha1", "overlappingrangeipreservations", "OverlappingRangeIPReservation", properties{
		"spec": object(properties{"containerid": text, "ifname": text, "podref": text}, "podref"),
	})
}

// InstallClusterPolicies installs the type ClusterNetworkPolicy of sigs.k8s.io/network-policy-api v0.2.0 without its validation.
func (s *Server) InstallClusterPolicies(tb testing.TB) {
	tb.Helper()
	spec := properties{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
	s.installScoped(tb, "Cluster", "policy.networking.k8s.io", "v1alpha2", "clusternetworkpolicies", "ClusterNetworkPolicy", properties{"spec": spec}, "cnp")
}

// InstallMultiPolicies installs a version of the type MultiNetworkPolicy (github.com/k8snetworkplumbingwg/multi-networkpolicy) without its
// validation.
func (s *Server) InstallMultiPolicies(tb testing.TB, version string) {
	tb.Helper()
	spec := properties{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
	s.install(tb, networksGroup, version, "multi-networkpolicies", "MultiNetworkPolicy", properties{"spec": spec})
}

const networksGroup = "k8s.cni.cncf.io"

// properties are a part of a schema.
type properties = map[string]any

var text = properties{"type": "string"}

func object(of properties, required ...string) properties {
	o := properties{"type": "object", "properties": of}
	if len(required) > 0 {
		o["required"] = required
	}
	return o
}

// install installs a namespaced type and waits until it is served. A status is a subresource.
func (s *Server) install(tb testing.TB, group, version, plural, kind string, of properties, short ...string) {
	tb.Helper()
	s.installScoped(tb, "Namespaced", group, version, plural, kind, of, short...)
}

func (s *Server) installScoped(tb testing.TB, scope, group, version, plural, kind string, of properties, short ...string) {
	tb.Helper()
	served := properties{"name": version, "served": true, "storage": true}
	if of["status"] != nil {
		served["subresources"] = properties{"status": properties{}}
	}
	of["apiVersion"], of["kind"], of["metadata"] = text, text, properties{"type": "object"}
	served["schema"] = properties{"openAPIV3Schema": object(of)}
	const crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	name := plural + "." + group
	s.Must(tb, http.MethodPost, crds, "", map[string]any{
		"metadata": map[string]any{"name": name, "annotations": map[string]any{"api-approved.kubernetes.io": "unapproved, a test"}},
		"spec": map[string]any{
			"group": group, "scope": scope, "versions": []any{served},
			"names": map[string]any{"plural": plural, "singular": strings.ToLower(kind), "kind": kind, "shortNames": short},
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
	}, func() string { return fmt.Sprintf("%s are not served: %+v", name, crd) })
}
