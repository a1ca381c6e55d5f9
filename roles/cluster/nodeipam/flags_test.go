package nodeipam

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles"
)

// The flags define the blocks as kube-controller-manager's do.
func TestFlags(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"--cluster-cidr=10.244.0.0/16", "[10.244.0.0/16 24]"},
		{"--cluster-cidr=10.244.7.1/16 --node-cidr-mask-size=26", "[10.244.0.0/16 26]"},
		{"--cluster-cidr=10.244.0.0/16 --node-cidr-mask-size-ipv4=20", "[10.244.0.0/16 20]"},
		{"--cluster-cidr=fd00::/56 --node-cidr-mask-size=60", "[fd00::/56 60]"},
		{"--cluster-cidr=fd00::/56", "[fd00::/56 64]"},
		{"--cluster-cidr=fd00::/56,10.0.0.0/8 --node-cidr-mask-size-ipv6=62", "[fd00::/56 62] [10.0.0.0/8 24]"},
		{"", "-cluster-cidr is missing"},
		{"--cluster-cidr=10.244.0.0", `"10.244.0.0" is not a network`},
		{"--cluster-cidr=::ffff:10.0.0.0/104", "is not a network"},
		{"--cluster-cidr=10.0.0.0/16,10.1.0.0/16", "give one network, or one of each family"},
		{"--cluster-cidr=10.0.0.0/16,fd00::/56,10.1.0.0/16", "give one network, or one of each family"},
		{"--cluster-cidr=10.0.0.0/16,fd00::/56 --node-cidr-mask-size=24", "-node-cidr-mask-size: give -node-cidr-mask-size-ipv4"},
		{"--cluster-cidr=10.0.0.0/16 --node-cidr-mask-size=24 --node-cidr-mask-size-ipv4=24", "-node-cidr-mask-size: give"},
		{"--cluster-cidr=10.0.0.0/16 --node-cidr-mask-size-ipv6=64", "give the one of the family"},
		{"--cluster-cidr=10.0.0.0/24 --node-cidr-mask-size=16", "-node-cidr-mask-size: node mask /16: give /24 to /32"},
		{"--cluster-cidr=10.0.0.0/25,fd00::/32", "-node-cidr-mask-size-ipv4: node mask /24: give /25 to /32 for the cluster network 10.0.0.0/25"},
		{"--cluster-cidr=10.0.0.0/16 --kubeconfig=file", `-kubeconfig: "file" is not an absolute path`},
		{"--cluster-cidr=10.0.0.0/16 --leader-elect-lease-duration=5s", "lease duration 5s"},
		{"--cluster-cidr=10.0.0.0/16 --cluster-dir=/x --etcd-endpoints=http://127.0.0.1:1", "give those of one registry"},
		{"--cluster-cidr-objects --cluster-dir=/x", "give those of one registry"},
		{"--cluster-cidr-objects --cluster-cidr-file=/dev/null", "-cluster-cidr-file: "},
		{"--cluster-cidr=10.0.0.0/16 --cluster-dir=x", `-cluster-dir: "x" is not an absolute path`},
		{"--cluster-cidr=10.0.0.0/16 --cluster-dir=/x", "[10.0.0.0/16 24]"},
		{"--cluster-cidr=10.0.0.0/16 extra", `"extra" is not a flag`},
		{"--cluster-cidr=10.0.0.0/16 --no-such-flag", "'cnibox nodeipam -help' lists the flags"},
	} {
		s, err := parseFlags("test", strings.Fields(c.args), nil)
		if err != nil {
			if !errors.Is(err, roles.ErrUsage) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v", c.args, err)
			}
			continue
		}
		sets, err := s.networks.blocks()
		var got []string
		for _, b := range sets {
			got = append(got, fmt.Sprintf("[%s %d]", b.network, b.length))
		}
		if is := strings.Join(got, " "); err != nil || is != c.want {
			t.Errorf("%s: got %s, %v, want %s", c.args, is, err, c.want)
		}
	}
	if _, err := parseFlags("test", []string{"-help"}, nil); !errors.Is(err, flag.ErrHelp) || !strings.Contains(err.Error(), "-cluster-cidr") {
		t.Error(err)
	}
	s, err := parseFlags("test", strings.Fields("--cluster-cidr=10.0.0.0/16 --service-cluster-ip-range=10.0.8.0/24,fd00::/112 --secondary-service-cluster-ip-range=10.0.9.0/24"), nil)
	if err != nil || fmt.Sprint(s.networks.services) != "[10.0.8.0/24 fd00::/112 10.0.9.0/24]" {
		t.Errorf("%v, %v", s, err)
	}
}

// TestRangeFile: ClusterCIDRs of a file are used without objects. All faults are reported.
func TestRangeFile(t *testing.T) {
	read := func(content string) (*settings, error) {
		path := filepath.Join(t.TempDir(), "ranges.yaml")
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		return parseFlags("test", []string{"-cluster-cidr-file=" + path}, nil)
	}
	s, err := read(`items:
- metadata: {name: old, deletionTimestamp: now}
  spec: {ipv4: 10.0.0.0/16, perNodeHostBits: 8}
- metadata: {name: new}
  spec: {ipv4: 10.1.0.0/16, perNodeHostBits: 8}
`)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // each term has its own table
		all, err := s.networks.table()
		if err != nil || len(all.ranges) != 2 || len(all.ordered("n", nil)) != 1 || all.ordered("n", nil)[0].name != "new" || all.sets[0].Used != 0 {
			t.Fatalf("%+v, %v", all, err)
		}
		all.sets[0].take()
	}
	for content, want := range map[string]string{
		"":            "items is empty",
		"items: 1":    "cannot unmarshal",
		"items: [}":   "-cluster-cidr-file: ",
		"items: [{}]": `items[0]: ClusterCIDR ""`,
		"items: [{metadata: {name: a}, spec: {ipv4: x, perNodeHostBits: 8}}, {metadata: {name: b}}]":                                                        "items[1]: spec.perNodeHostBits: 0 is less than 4",
		"items: [{metadata: {name: a}, spec: {ipv4: 10.0.0.0/8, perNodeHostBits: 8}}, {metadata: {name: a}, spec: {ipv4: 10.0.0.0/8, perNodeHostBits: 8}}]": "items[1]: this name occurs twice",
		strings.Repeat(" ", maxRangeFile+1): "too large",
	} {
		if _, err := read(content); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.100q: %v, want %s", content, err, want)
		}
	}
}

// The plan counts nodes and pods, and names overlaps.
func TestPlan(t *testing.T) {
	for _, c := range []struct {
		flags map[string]string
		want  string
	}{
		{map[string]string{"cluster-cidr": "10.244.0.0/16"}, "256 nodes 28160 pods"},
		{map[string]string{"cluster-cidr": "10.244.0.0/24", "node-mask": "24"}, "1 nodes 110 pods"}, // kubernetes #85866
		{map[string]string{"cluster-cidr": "10.244.0.0/16", "node-mask": "26"}, "1024 nodes 62464 pods"},
		{map[string]string{"cluster-cidr": "10.244.0.0/16", "node-cidr-mask-size": "24", "max-pods": "500"}, "256 nodes 64768 pods"},
		{map[string]string{"cluster-cidr": "10.244.0.0/16,fd00::/60"}, "16 nodes 1760 pods"},
		{map[string]string{"cluster-cidr": "10.96.0.0/11", "service-cluster-ip-range": "10.96.0.0/12"}, "4096 nodes 450560 pods services 4096"},
		{map[string]string{"cluster-cidr": "10.96.0.0/12", "service-cluster-ip-range": "10.0.0.0/8"}, "0 nodes 0 pods services 4096"},
		{map[string]string{"cluster-cidr": "10.244.0.0/16", "host-range": "10.244.3.0/28,192.0.2.0/24"}, "256 nodes 28160 pods hosts 1"},
		{map[string]string{"cluster-cidr": "10.244.0.0/31", "node-mask": "32"}, "2 nodes 0 pods"},
		{map[string]string{}, "-cluster-cidr is missing"},
		{map[string]string{"cluster-cidr": "10.244.0.0/16", "max-pods": "0"}, "-max-pods: 0"},
		{map[string]string{"cluster-cidr": "rubbish"}, "-cluster-cidr: "},
	} {
		out, err := plan(t.Context(), nil, c.flags, nil)
		if err != nil {
			if !errors.Is(err, roles.ErrUsage) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v: %v", c.flags, err)
			}
			continue
		}
		o := out.(*outlook)
		got := fmt.Sprintf("%d nodes %d pods", o.Nodes, o.Pods)
		for _, v := range o.Options[0].Overlaps {
			got += fmt.Sprintf(" %s %d", v.Of, v.Blocks)
		}
		if got != c.want {
			t.Errorf("%v: got %s, want %s", c.flags, got, c.want)
		}
	}
	// A larger network may overlap what the given one does not.
	out, err := plan(t.Context(), nil, map[string]string{"cluster-cidr": "10.244.0.0/16", "host-range": "10.245.0.0/24"}, nil)
	if err != nil || !strings.Contains(fmt.Sprint(out), "larger network: 10.245.0.0/24 of hosts overlaps blocks of 10.244.0.0/15 (1): pods could not reach these hosts") {
		t.Errorf("%v, %v", out, err)
	}
}
