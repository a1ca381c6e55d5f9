// Package policy runs the conformance tests of network-policy-api and writes their report.
package policy

import (
	"context"
	"flag"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	extensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	api "sigs.k8s.io/network-policy-api/apis/v1beta1"
	report "sigs.k8s.io/network-policy-api/conformance/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/conformance/tests"
	"sigs.k8s.io/network-policy-api/conformance/utils/suite"
	"sigs.k8s.io/yaml"
)

var (
	output  = flag.String("report", "", "file for the report")
	version = flag.String("of", "", "version of cnibox")
)

// usesSCTP matches the names of the tests that connect by SCTP.
var usesSCTP = regexp.MustCompile("SCTP|Gress$|InlineCIDRPeers|NodePeers|PortRange")

// TestConformance runs all tests. Without SCTP in the kernel it leaves out the tests that connect by SCTP, and the containers that serve
// it, which would not start.
func TestConformance(t *testing.T) {
	cfg, err := config.GetConfig()
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(cfg, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, add := range []func(*runtime.Scheme) error{api.Install, extensions.AddToScheme} {
		if err := add(c.Scheme()); err != nil {
			t.Fatal(err)
		}
	}
	o := suite.Options{Client: c, ClientSet: kubernetes.NewForConfigOrDie(cfg), KubeConfig: *cfg, EnableAllSupportedFeatures: true}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP)
	if err == nil {
		_ = unix.Close(fd)
	} else {
		t.Logf("the kernel has no SCTP: %v", err)
		o.Client = withoutSCTP{c}
		for i := range tests.ConformanceTests {
			if name := tests.ConformanceTests[i].ShortName; usesSCTP.MatchString(name) {
				o.SkipTests = append(o.SkipTests, name)
			}
		}
	}
	s, err := suite.NewConformanceProfileTestSuite(suite.ConformanceProfileOptions{
		Options: o, ConformanceProfiles: sets.New(suite.CNPConformanceProfileName),
		Implementation: report.Implementation{
			Organization: "cnibox", Project: "cnibox", URL: "https://github.com/cnibox/cnibox", Version: *version,
			Contact: []string{"https://github.com/cnibox/cnibox/issues"}, AdditionalInformation: "make conformance-policy",
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Setup(t)
	if err := s.Run(t, tests.ConformanceTests); err != nil {
		t.Error(err)
	}
	r, err := s.Report()
	if err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(r)
	if err == nil {
		err = os.WriteFile(*output, text, 0o600)
	}
	if err != nil {
		t.Error(err)
	}
}

// withoutSCTP is a client that makes the StatefulSets without containers that serve SCTP.
type withoutSCTP struct{ client.Client }

func (c withoutSCTP) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	if u, ok := o.(*unstructured.Unstructured); ok && u.GetKind() == "StatefulSet" {
		path := []string{"spec", "template", "spec", "containers"}
		all, _, err := unstructured.NestedSlice(u.Object, path...)
		if err != nil {
			return err
		}
		all = slices.DeleteFunc(all, func(one any) bool {
			env, _, _ := unstructured.NestedSlice(one.(map[string]any), "env")
			return slices.ContainsFunc(env, func(v any) bool {
				name, _ := v.(map[string]any)["name"].(string)
				return strings.HasPrefix(name, "SERVE_SCTP_PORT_")
			})
		})
		if err := unstructured.SetNestedSlice(u.Object, all, path...); err != nil {
			return err
		}
	}
	return c.Client.Create(ctx, o, opts...)
}
