//go:build kube

package docs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/cnibox/cnibox/test/kubetest"
)

// TestKubeChart: the chart in examples/helm makes the same objects as the kustomizations, and refuses values that its
// schema does not know. A change of the network changes the template of the agents, so that they are replaced.
func TestKubeChart(t *testing.T) {
	render := func(count int, program string, args ...string) string {
		t.Helper()
		out, err := exec.Command(kubetest.Built(program), args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s %q: %v: %s", program, args, err, out)
		}
		return objects(t, string(out), count)
	}
	template := []string{"template", "cnibox", "../../../examples/helm", "--namespace", "kube-system"}
	changed := t.TempDir()
	if err := os.CopyFS(changed, os.DirFS("../../../examples/kubernetes")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(changed+"/net-conf.json", []byte(`{"Network": "10.99.0.0/16"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	for program, one := range map[string][2][]string{
		"kubectl": {{"kustomize", "../../../examples/kubernetes"}, {"kustomize", changed}},
		"helm":    {template, append(template, "--set", "netConf.Network=10.99.0.0/16")},
	} {
		if before, after := agents(t, program, one[0]), agents(t, program, one[1]); before == after {
			t.Errorf("%s: a change of the network leaves the agents as they are: %s", program, after)
		}
	}
	for dir, one := range map[string]struct {
		set   string
		count int
	}{
		"kubernetes": {"uninstall=false", 5}, "kubernetes-policy": {"policy.enabled=true", 10}, "kubernetes-ranges": {"ranges=true", 10},
		"kubernetes-egress":    {"egress.networks={203.0.113.0/28,2001:db8::/124}", 10},
		"kubernetes-uninstall": {"uninstall=true,policy.enabled=true,ranges=true,egress.networks={203.0.113.0/28}", 20},
	} {
		flags := []string{"--set", one.set}
		want, got := render(one.count, "kubectl", "kustomize", "../../../examples/"+dir), render(one.count, "helm", append(template, flags...)...)
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

// agents returns the template of the DaemonSet's pods as JSON.
func agents(t *testing.T, program string, args []string) string {
	t.Helper()
	text, err := exec.Command(kubetest.Built(program), args...).Output()
	if err != nil {
		t.Fatalf("%s %q: %v", program, args, err)
	}
	for _, o := range documents(t, string(text)) {
		if o["kind"] == "DaemonSet" {
			out, err := json.Marshal(o["spec"].(map[string]any)["template"])
			if err != nil {
				t.Fatal(err)
			}
			return string(out)
		}
	}
	t.Fatalf("%s %q makes no DaemonSet", program, args)
	return ""
}

// documents decodes YAML documents.
func documents(t *testing.T, text string) (all []map[string]any) {
	t.Helper()
	for d := yaml.NewDecoder(strings.NewReader(text)); ; {
		var o map[string]any
		err := d.Decode(&o)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, o)
	}
}

// objects returns the YAML documents as JSON, one a line by kind and name. JSON within a ConfigMap is decoded, too. The hash in the
// ConfigMap's name, and the chart's checksum in its place, are left out.
func objects(t *testing.T, text string, count int) string {
	t.Helper()
	all := map[string]map[string]any{}
	text = regexp.MustCompile(`\bcnibox-[b-z2-9]{10}\b`).ReplaceAllString(text, "cnibox")
	text = regexp.MustCompile(` +annotations:\n( +#.*\n)? +checksum/config: [0-9a-f]{64}\n`).ReplaceAllString(text, "")
	for _, o := range documents(t, text) {
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
		meta, _ := o["metadata"].(map[string]any)
		all[fmt.Sprint(kind, " ", meta["namespace"], "/", meta["name"])] = o
	}
	out, err := json.MarshalIndent(all, "", " ")
	if err != nil || len(all) != count {
		t.Fatalf("%d objects: %v", len(all), err)
	}
	return string(out)
}
