//go:build kube

package docs

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/cnibox/cnibox/test/kubetest"
)

// TestKubeChart: the chart in examples/helm makes the same objects as the kustomizations, and refuses values that its
// schema does not know.
func TestKubeChart(t *testing.T) {
	render := func(kinds int, program string, args ...string) string {
		t.Helper()
		out, err := exec.Command(kubetest.Built(program), args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s %q: %v: %s", program, args, err, out)
		}
		return objects(t, string(out), kinds)
	}
	template := []string{"template", "cnibox", "../../../examples/helm", "--namespace", "kube-system"}
	for dir, flags := range map[string][]string{"kubernetes": nil, "kubernetes-uninstall": {"--set", "uninstall=true"}} {
		want, got := render(5, "kubectl", "kustomize", "../../../examples/"+dir), render(5, "helm", append(template, flags...)...)
		if got != want {
			t.Errorf("the chart with %q makes\n%s\nand examples/%s\n%s", flags, got, dir, want)
		}
	}
	for file, one := range map[string]struct {
		value string
		kinds int
	}{"ranges.yaml": {"ranges=true", 5}, "policy.yaml": {"policy.enabled=true", 5}} {
		rights, err := os.ReadFile("../../../examples/kubernetes/" + file)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := render(one.kinds, "helm", append(template, "--set", one.value, "--show-only", "templates/"+file)...), objects(t, string(rights), one.kinds); got != want {
			t.Errorf("the chart with %s makes\n%s\nand examples/kubernetes/%s\n%s", one.value, got, file, want)
		}
	}
	if out, err := exec.Command(kubetest.Built("helm"), append(template, "--set", "policy.enabled=true")...).Output(); err != nil || !strings.Contains(string(out), "- --policy\n") {
		t.Errorf("with policy.enabled the agent has no --policy: %v", err)
	}
	set := "netConf.Backend.Port=4790,netConf.Backend.TxChecksumOffload=false"
	configured := render(1, "helm", append(template, "--show-only", "templates/configmap.yaml", "--set", set)...)
	if !strings.Contains(configured, `"Port": 4790`) || !strings.Contains(configured, `"TxChecksumOffload": false`) {
		t.Errorf("the chart with %s makes\n%s", set, configured)
	}
	for value, want := range map[string]string{"netConf.Network=none": "Network", "netConf.Backend.Type=udp": "Type", "images.tag=x": "images", "conflist.plugins=null": "plugins", "policy.on=true": "policy", "netConf.Backend.Port=65536": "Port", "netConf.Backend.Port=abc": "Port", "netConf.Backend.TxChecksumOffload=off": "TxChecksumOffload"} {
		out, err := exec.Command(kubetest.Built("helm"), append(template, "--set", value)...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("--set %s: %v: %s", value, err, out)
		}
	}
}

// objects returns the YAML documents as JSON, one a line by kind. JSON within a ConfigMap is decoded, too.
func objects(t *testing.T, text string, kinds int) string {
	t.Helper()
	all := map[string]map[string]any{}
	for d := yaml.NewDecoder(strings.NewReader(text)); ; {
		var o map[string]any
		err := d.Decode(&o)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		kind, _ := o["kind"].(string)
		if data, ok := o["data"].(map[string]any); ok {
			for key, value := range data {
				var decoded any
				if err := json.Unmarshal([]byte(value.(string)), &decoded); err != nil {
					t.Fatalf("%s: %v", key, err)
				}
				data[key] = decoded
			}
		}
		all[kind] = o
	}
	out, err := json.MarshalIndent(all, "", " ")
	if err != nil || len(all) != kinds {
		t.Fatalf("%d kinds of objects: %v", len(all), err)
	}
	return string(out)
}
