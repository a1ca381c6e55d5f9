package multi

import (
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/cnibox/cnibox/roles"
)

// TestConf: valid configurations, and invalid ones with the keys of their faults.
func TestConf(t *testing.T) {
	for _, c := range []struct{ name, conf, faults string }{
		{"by name", `{"clusterNetwork":"a","defaultNetworks":["b"]}`, ""},
		{"inline", `{"delegates":[{"name":"a","type":"bridge"}]}`, ""},
		{"Multus's own keys", `{"clusterNetwork":"/etc/cni/net.d/a.conflist","kubeconfig":"/k","confDir":"/c","cniDir":"/v","binDir":"/b","logLevel":"debug","logFile":"/l",
			"logToStderr":false,"logOptions":{"maxAge":5},"namespaceIsolation":true,"globalNamespaces":"a, b","systemNamespaces":[],"multusNamespace":"m",
			"readinessindicatorfile":"/r","retryDeleteOnError":true,"socketDir":"/s","chrootDir":"/h","metricsPort":9,"enablePprof":true,"connectionLimit":4,"perNodeCertificate":{}}`, ""},
		{"nothing", `{}`, "clusterNetwork"},
		{"defaults without a cluster network", `{"delegates":[{"name":"a","type":"bridge"}],"defaultNetworks":["b"]}`, "defaultNetworks"},
		{
			"everything", `{"delegates":[{"plugins":[{}]},7],"confDir":"a","binDir":"a","networksDir":"a","kubeconfig":"a","readinessindicatorfile":"a","interfacePrefix":"a/b","auxiliaryCNIChainName":"x"}`,
			"auxiliaryCNIChainName binDir confDir delegates[0].name delegates[0].plugins[0].type delegates[1].(top interfacePrefix kubeconfig networksDir readinessindicatorfile",
		},
		{"wrong type", `{"clusterNetwork":7}`, "clusterNetwork"},
	} {
		_, err := Role().New([]byte(c.conf))
		var have []string
		if err != nil {
			for line := range strings.SplitSeq(err.Error(), "\n") {
				word, _, _ := strings.Cut(line, " ")
				have = append(have, strings.TrimSuffix(word, ":"))
			}
		}
		slices.Sort(have)
		if diff := cmp.Diff(strings.Fields(c.faults), have); diff != "" && (c.faults != "" || err != nil) {
			t.Errorf("%s: %v: %s", c.name, err, diff)
		}
		if err != nil && !errors.Is(err, roles.ErrConf) {
			t.Errorf("%s: %v", c.name, err)
		}
		if _, err := Role().Undo([]byte(c.conf)); err != nil {
			t.Errorf("%s: DEL would not bear it: %v", c.name, err)
		}
	}
}

// FuzzConf: no configuration leads to a panic, neither when it is read nor when its networks are
// resolved. Resolved networks have different interfaces.
func FuzzConf(f *testing.F) {
	f.Add(`{"delegates":[{"name":"a","type":"bridge"},{"name":"b","plugins":[{"type":"x","linkInContainer":true}]}]}`, `{"k8s.v1.cni.cncf.io/networks":"a,b@c"}`)
	f.Add(`{"clusterNetwork":"a"}`, `{"cni":"a"}`)
	f.Add(`{"delegates":[{"name":"a","type":"bridge"}],"runtimeConfig":{"io.kubernetes.cri.pod-annotations":7},"args":{"cni":{"cni":[]}}}`, `[]`)
	f.Fuzz(func(t *testing.T, conf, annotations string) {
		_, _ = Role().Undo([]byte(conf))
		c, err := readConf([]byte(conf))
		if err != nil || c.Validate() != nil {
			return
		}
		c.NetworksDir, c.ConfDir, c.Kubeconfig = t.TempDir(), t.TempDir(), ""
		if strings.HasPrefix(c.ClusterNetwork, "/") || slices.ContainsFunc(c.DefaultNetworks, filepath.IsAbs) {
			return
		}
		args, err := roles.ParseArgs("K8S_POD_NAMESPACE=web;K8S_ANNOT=" + annotations)
		if err != nil {
			return
		}
		all, err := (&handler{conf: c}).resolve(t.Context(), &roles.Request{IfName: "eth0", Args: args}, nil)
		if err != nil {
			return
		}
		seen := map[string]bool{}
		for _, n := range all {
			if seen[n.IfName] || !json.Valid(n.List) || n.Name == "" {
				t.Errorf("%q: %q: delegate %+v", conf, annotations, n)
			}
			seen[n.IfName] = true
		}
		_ = usesLinkInContainer(all)
	})
}

// TestResolve: each testdata/*.txtar has a configuration, a pod's annotations, network files, and
// the expected delegates or error. -update rewrites the expectation.
func TestResolve(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			var conf, want string
			annotations := map[string]string{}
			for _, f := range a.Files {
				text := string(f.Data)
				switch {
				case f.Name == "conf.json":
					conf = text
				case f.Name == "want":
					want = text
				case strings.HasPrefix(f.Name, "annotations/"):
					annotations[strings.TrimPrefix(f.Name, "annotations/")] = strings.TrimSpace(text)
				default:
					path := filepath.Join(dir, f.Name)
					if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, f.Data, 0o600)); err != nil {
						t.Fatal(err)
					}
				}
			}
			have := strings.ReplaceAll(resolved(t, conf, dir, annotations), dir, "$DIR")
			if flag.Lookup("update").Value.String() == "true" { // rolestest defines the flag
				a.Files = append(slices.DeleteFunc(a.Files, func(f txtar.File) bool { return f.Name == "want" }), txtar.File{Name: "want", Data: []byte(have)})
				if err := os.WriteFile(file, txtar.Format(a), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(want, have); diff != "" {
				t.Errorf("-want +have:\n%s", diff)
			}
		})
	}
}

// resolved returns one line per delegate, or the error.
func resolved(t *testing.T, conf, dir string, annotations map[string]string) string {
	t.Helper()
	c, err := readConf([]byte(conf))
	c.NetworksDir, c.ConfDir = filepath.Join(dir, "nets"), filepath.Join(dir, "confs")
	if err == nil {
		err = c.Validate()
	}
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(annotations)
	if err != nil {
		t.Fatal(err)
	}
	c.RuntimeConfig = map[string]json.RawMessage{annotationsCapability: raw}
	args, err := roles.ParseArgs("K8S_POD_NAMESPACE=web;K8S_POD_NAME=pod")
	if err != nil {
		t.Fatal(err)
	}
	all, err := (&handler{conf: c}).resolve(t.Context(), &roles.Request{IfName: "eth0", Args: args}, nil)
	if err != nil {
		return err.Error() + "\n"
	}
	var out strings.Builder
	for _, n := range all {
		delete(n.Runtime, annotationsCapability)
		line, err := json.Marshal(n)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(append(line, '\n'))
	}
	return out.String()
}
