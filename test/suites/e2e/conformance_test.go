//go:build cluster

package e2e

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/cnibox/cnibox/test/internal/page"
	"github.com/cnibox/cnibox/test/kubetest"
)

// Images of Kubernetes 1.37's tests. Agnhost is Kubernetes' own program, with the programs that the tests run in it. Of nginx the
// tests need only that it runs.
const (
	e2eImages   = "registry.k8s.io/e2e-test-images/"
	agnhost     = e2eImages + "agnhost:2.66.1"
	dnsTesting  = e2eImages + "glibc-dns-testing:2.1.1"
	nginx       = e2eImages + "nginx:1.27.0-2"
	pause       = "registry.k8s.io/pause:3.10.2"
	dnsImage    = "localhost/coredns:1"
	dnsManifest = `apiVersion: v1
kind: ServiceAccount
metadata: {name: coredns, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: system:coredns}
rules:
- {apiGroups: [""], resources: [endpoints, services, pods, namespaces], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: system:coredns}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:coredns}
subjects: [{kind: ServiceAccount, name: coredns, namespace: kube-system}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: coredns, namespace: kube-system}
data:
  Corefile: |
    .:53 {
        errors
        ready
        kubernetes cluster.local in-addr.arpa ip6.arpa {
            pods insecure
        }
        cache 30
    }
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: coredns, namespace: kube-system}
spec:
  replicas: 2
  selector: {matchLabels: {k8s-app: kube-dns}}
  template:
    metadata: {labels: {k8s-app: kube-dns}}
    spec:
      serviceAccountName: coredns
      dnsPolicy: Default
      containers:
      - name: coredns
        image: ` + dnsImage + `
        imagePullPolicy: Never
        command: [/coredns]
        args: [-conf, /etc/coredns/Corefile]
        readinessProbe: {httpGet: {path: /ready, port: 8181}}
        volumeMounts: [{name: config, mountPath: /etc/coredns}]
      volumes: [{name: config, configMap: {name: coredns}}]
---
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system, labels: {k8s-app: kube-dns}}
spec:
  clusterIP: ` + clusterDNS + `
  selector: {k8s-app: kube-dns}
  ports:
  - {name: dns, port: 53, protocol: UDP}
  - {name: dns-tcp, port: 53, protocol: TCP}
`
)

// suite is what e2e.test reports in JUnit's form.
type suite struct {
	Cases []testcase `xml:"testsuite>testcase"`
}

type testcase struct {
	Name    string  `xml:"name,attr"`
	Status  string  `xml:"status,attr"`
	Time    float64 `xml:"time,attr"`
	Failure *struct {
		Message string `xml:"message,attr"`
	} `xml:"failure"`
}

// TestConformance runs Kubernetes' conformance tests of sig-network on a cluster of three nodes and writes the results to
// BENCHMARKS.md. The nodes have containerd 1.6, or 2 with CNIBOX_CONTAINERD=2.
func TestConformance(t *testing.T) {
	column, c := 0, (*cluster)(nil)
	if os.Getenv("CNIBOX_CONTAINERD") == "2" {
		column, c = 1, newCluster(t, 0, 3)
	} else {
		c = newCluster(t, 3, 0)
	}
	c.prepare(t)
	run := c.e2e(t,
		[]string{"--ginkgo.focus=" + conformance("(Services)")},
		[]string{"--ginkgo.focus=" + conformance("(DNS|Networking)")},
		[]string{"--ginkgo.focus=" + conformance(""), "--ginkgo.skip=" + conformance("(Services|DNS|Networking)")})
	for _, one := range run {
		if one.Status != "passed" {
			t.Errorf("%s: %s: %+v", one.Name, one.Status, one.Failure)
		}
	}
	c.sound(t)
	if len(run) > 0 {
		benchmarks := filepath.Join(root(t), "BENCHMARKS.md")
		former, err := page.Content(benchmarks, "conformance")
		if err != nil {
			t.Fatal(err)
		}
		if err := page.Replace(benchmarks, "conformance", conformanceSection(former, run, column)); err != nil {
			t.Fatal(err)
		}
	}
}

// prepare loads the tests' images, installs cnibox and starts the cluster's DNS.
func (c *cluster) prepare(t *testing.T) {
	t.Helper()
	c.load(t, image(t, filepath.Join(root(t), "bin", "cnibox"), "v0.1.0"))
	porter := filepath.Join(kubernetesModule(t), "test/images/agnhost/porter")
	programs := []entry{
		{name: "agnhost", perm: 0o755, data: content(t, kubetest.Built("agnhost"))},
		{name: "agnhost-2", link: "agnhost"},
		{name: "coredns", perm: 0o755, data: content(t, kubetest.Built("coredns"))},
		{name: "localhost.crt", perm: 0o644, data: content(t, filepath.Join(porter, "localhost.crt"))},
		{name: "localhost.key", perm: 0o644, data: content(t, filepath.Join(porter, "localhost.key"))},
		{name: "uploads/", perm: 0o777},
		{name: "etc/nsswitch.conf", perm: 0o644, data: []byte("hosts: files dns\n")},
	}
	programs = append(programs, dynamic(t, "curl", "dash", "dig", "getent", "nc")...)
	// The shell of busybox prefers its own nc.
	programs = append(append(programs, applets(t)...), entry{name: "bin/sh", link: "dash"})
	c.load(t, writeImageWith(t, []string{agnhost, dnsTesting, dnsImage}, programs, []string{"/agnhost"}, []string{"pause"}))
	c.load(t, writeImage(t, nginx, "/bin/busybox", "httpd", "-f", "-p", "80"))
	c.load(t, writeImage(t, pause, "/bin/sleep", "100000"))
	c.install(t)
	writeFile(t, c.file("dns.yaml"), dnsManifest)
	c.kubectl(t, "apply", "-f", c.file("dns.yaml"))
	c.kubectl(t, "-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=2m")
}

// kubernetesModule returns the directory of the module k8s.io/kubernetes.
func kubernetesModule(t *testing.T) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes")
	cmd.Dir = filepath.Join(root(t), "test/peers/kube")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("find k8s.io/kubernetes: %v", err)
	}
	return strings.TrimSpace(string(out))
}

// e2e runs e2e.test once for each list of flags, all at once because the tests mostly wait, and returns the tests that were not skipped.
func (c *cluster) e2e(t *testing.T, parts ...[]string) []testcase {
	t.Helper()
	var running sync.WaitGroup
	var results []func() []testcase
	for i, flags := range parts {
		dir := filepath.Join(root(t), "bin", "conformance", strconv.Itoa(i))
		log, report := filepath.Join(dir, "log"), filepath.Join(dir, "junit.xml")
		_ = os.Remove(report)
		writeFile(t, log, "")
		out, err := os.OpenFile(log, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		cmd := c.command(t.Context(), append([]string{
			kubetest.Built("e2e.test"), "--kubeconfig=" + c.kubeconfig, "--kubectl-path=" + kubetest.Built("kubectl"), "--provider=skeleton",
			"--ginkgo.no-color", "--ginkgo.v", "--ginkgo.timeout=100m", "--num-nodes=3", "--ginkgo.junit-report=" + report, "--disable-log-dump", "--e2e-output-dir=" + dir,
		}, flags...)...)
		cmd.Stdout, cmd.Stderr = out, out
		running.Go(func() {
			defer out.Close()
			err = cmd.Run()
		})
		results = append(results, func() []testcase {
			var s suite
			if bad := xml.Unmarshal(content(t, report), &s); err != nil || bad != nil {
				t.Errorf("%v, %v: see %s", err, bad, log)
			}
			return s.Cases
		})
	}
	running.Wait()
	var run []testcase
	for _, result := range results {
		run = append(run, slices.DeleteFunc(result(), func(c testcase) bool {
			return !strings.HasPrefix(c.Name, "[It] [sig-network]") || c.Status == "skipped"
		})...)
	}
	return run
}

// conformance returns the regular expression of sig-network's conformance tests whose names begin so.
func conformance(of string) string { return `\[sig-network\] ` + of + `.*\[Conformance\]` }

// conformanceRow is a test with its results on containerd 1.6 and 2.
var conformanceRow = regexp.MustCompile(`(?m)^\| (.+) \| (\S+) \| (\S+) \|$`)

// conformanceSection returns the section with the results of a run in a column. The other column stays.
func conformanceSection(former string, run []testcase, column int) string {
	results := map[string]*[2]string{}
	for _, row := range conformanceRow.FindAllStringSubmatch(former, -1) {
		results[row[1]] = &[2]string{row[2], row[3]}
		results[row[1]][column] = "-"
	}
	for _, c := range run {
		name, _, _ := strings.Cut(strings.TrimPrefix(c.Name, "[It] [sig-network] "), " [Conformance]")
		name = strings.ReplaceAll(name, "|", `\|`)
		if results[name] == nil {
			results[name] = &[2]string{"-", "-"}
		}
		results[name][column] = c.Status
	}
	var rows strings.Builder
	var ran, passed [2]int
	for _, name := range slices.Sorted(maps.Keys(results)) {
		r := results[name]
		if *r == [2]string{"-", "-"} {
			continue
		}
		fmt.Fprintf(&rows, "| %s | %s | %s |\n", name, r[0], r[1])
		for i := range r {
			if r[i] != "-" {
				ran[i]++
			}
			if r[i] == "passed" {
				passed[i]++
			}
		}
	}
	return fmt.Sprintf(`## Conformance

`+"`make conformance`"+` runs the conformance tests of Kubernetes' sig-network, from Kubernetes' own `+"`e2e.test`"+`, on the cluster of
[this test](#a-cluster-under-faults), with containerd 1.6 on each node, and writes this section. With `+"`CONTAINERD=2`"+` each node has containerd 2.4.
It builds kube-proxy, `+"`agnhost`"+` and CoreDNS from their Go modules. The image of `+"`agnhost`"+` has curl, dig and nc of Debian 12, and that
of nginx has busybox's web server: the tests need only that it runs.

With containerd 1.6, %d tests of version 1.37.2 ran: %d passed and %d failed. With containerd 2.4, %d ran: %d passed and %d failed.

| test | containerd 1.6 | containerd 2.4 |
|---|---|---|
%s`, ran[0], passed[0], ran[0]-passed[0], ran[1], passed[1], ran[1]-passed[1], rows.String())
}

func content(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// dynamic returns programs of this machine with their libraries.
func dynamic(t *testing.T, names ...string) []entry {
	t.Helper()
	var out []entry
	added := map[string]bool{}
	add := func(name, file string) {
		if !added[name] {
			added[name] = true
			out = append(out, entry{name: strings.TrimPrefix(name, "/"), perm: 0o755, data: content(t, file)})
		}
	}
	for _, name := range names {
		file, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		libraries, err := exec.CommandContext(t.Context(), "ldd", file).Output()
		if err != nil {
			t.Fatalf("ldd %s: %v", file, err)
		}
		add("/bin/"+name, file)
		for line := range bytes.Lines(libraries) {
			for _, word := range strings.Fields(string(line)) {
				if strings.HasPrefix(word, "/") {
					add(word, word)
				}
			}
		}
	}
	return out
}

// applets returns links for all of busybox but what dynamic has.
func applets(t *testing.T) []entry {
	t.Helper()
	names, err := exec.CommandContext(t.Context(), "busybox", "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	var out []entry
	for _, name := range strings.Fields(string(names)) {
		if !slices.Contains([]string{"busybox", "nc", "sh", "cat", "httpd", "ip", "ping", "sleep", "wget"}, name) {
			out = append(out, entry{name: "bin/" + name, link: "busybox"})
		}
	}
	return out
}
