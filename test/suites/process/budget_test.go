package process

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// maxSize bounds the stripped binary, in bytes: 10 % above what it was.
const maxSize = 23_060_000

// maxInits and maxInitAllocs bound the packages that a start initializes and their allocations.
const (
	maxInits      = 116
	maxInitAllocs = 750
)

// denied maps a package prefix to the reason why no package of it may be linked: every start pays for each linked package.
func denied() map[string]string {
	return map[string]string{
		"k8s.io/":                                 "a clientset costs 10 to 16 ms and 30 to 60 MB; Kubernetes is spoken to over net/http",
		"sigs.k8s.io/":                            "knftables needs the nft program and 0.5 ms of init",
		"go.etcd.io/etcd/":                        "etcd is spoken to through its JSON gateway",
		"google.golang.org/grpc":                  "comes with etcd's client; several ms of init",
		"google.golang.org/protobuf":              "registers its types in init",
		"github.com/prometheus/":                  "registers collectors in init",
		"go.opentelemetry.io/":                    "comes with pkg/invoke of containernetworking/cni, of which only the types are used",
		"github.com/google/gopacket":              "5 ms of init",
		"github.com/gopacket/":                    "5 ms of init",
		"github.com/coreos/go-iptables":           "executes iptables; compiles expressions",
		"github.com/aws/":                         "cloud interfaces are a few HTTP requests",
		"github.com/Azure/":                       "cloud interfaces are a few HTTP requests",
		"cloud.google.com/":                       "cloud interfaces are a few HTTP requests",
		"github.com/onsi/":                        "a test library",
		"github.com/google/go-cmp":                "a test library",
		"github.com/rogpeppe/":                    "a test library",
		"testing":                                 "a test library",
		"github.com/cpuguy83/go-md2man":           "urfave/cli without the tag urfave_cli_no_docs: 0.35 ms of init",
		"github.com/russross/":                    "urfave/cli without the tag urfave_cli_no_docs",
		"github.com/goccy/go-yaml":                "takes quadratic time for keys and for depth: over a minute for 2 MiB of [",
		"gopkg.in/yaml":                           "0.2 ms of init; configurations are JSON",
		"sigs.k8s.io/yaml":                        "0.2 ms of init; configurations are JSON",
		"github.com/safchain/ethtool":             "the two ioctls that are needed are written out",
		"github.com/networkplumbing/go-nft":       "executes nft",
		"net/http/pprof":                          "no role serves profiles",
		"net/rpc":                                 "4 % of a start; roles/cluster/dhcp/netrpc speaks its protocol",
		"expvar":                                  "brings net/http",
		"encoding/xml":                            "a map of 250 entities at each start: 5 page faults",
		"github.com/godbus/":                      "panics on a message without a body; internal/dbus calls methods",
		"github.com/google/nftables":              "netops/internal/nft encodes expressions, and those that the library lacks",
		"encoding/gob":                            "18 page faults and 5 % of a start; roles/cluster/dhcp/netrpc reads it",
		"html/template":                           "nothing renders HTML",
		"github.com/containernetworking/plugins/": "the reference is a peer, not a library",
	}
}

func TestDependencies(t *testing.T) {
	deps := dependencies(t, "../../..")
	if !slices.Contains(deps, "github.com/cnibox/cnibox/roles/call/dispatch") {
		t.Errorf("these are not the product's dependencies: %q", deps)
	}
	deny(t, deps, denied())
}

// deny reports linked packages that are denied, and their importers.
func deny(t *testing.T, deps []string, reasons map[string]string) {
	t.Helper()
	for _, dep := range deps {
		for prefix, why := range reasons {
			if dep == prefix || strings.HasPrefix(dep, strings.TrimSuffix(prefix, "/")+"/") {
				t.Errorf("%s is linked: %s; brought by %s", dep, why, importers(t, dep))
			}
		}
	}
}

// dependencies lists every package that a program is linked from.
func dependencies(t *testing.T, pkg string) []string {
	t.Helper()
	return strings.Fields(goList(t, "{{.ImportPath}}", pkg))
}

// importers lists the packages that import one.
func importers(t *testing.T, pkg string) string {
	t.Helper()
	var out []string
	for line := range strings.Lines(goList(t, `{{.ImportPath}} {{join .Imports " "}}`, "../../..")) {
		f := strings.Fields(line)
		if len(f) > 1 && slices.Contains(f[1:], pkg) {
			out = append(out, f[0])
		}
	}
	return strings.Join(out, ", ")
}

func goList(t *testing.T, format, pkg string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-tags", buildTags, "-f", format, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// TestSize bounds the size of the binary that `make build` makes, with the flags of the Makefile.
func TestSize(t *testing.T) {
	st, err := os.Stat("../../../bin/cnibox")
	if err != nil {
		t.Fatalf("%v: make build makes it", err)
	}
	t.Logf("binary %.1f MB", float64(st.Size())/(1<<20))
	if st.Size() > maxSize {
		t.Errorf("the binary has %d bytes, at most %d are wanted", st.Size(), maxSize)
	}
}

// TestPruned: no function of the program looks methods up by names that only a run has, as text/template does. The linker marks such
// functions, and with one of them it keeps the exported methods of all types: 2 MB, and 5 to 9 % of each start.
func TestPruned(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-tags", buildTags, "-ldflags", ldFlags+" -dumpdep", "-o", os.DevNull, "../../..")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("main.main -> ")) {
		t.Fatalf("%v: %.1000s", err, out)
	}
	marked := map[string]bool{}
	for line := range bytes.Lines(out) {
		if from, _, ok := bytes.Cut(line, []byte(" <ReflectMethod> -> ")); ok {
			marked[string(from)] = true
		}
	}
	for name := range marked {
		t.Errorf("%s calls methods by name: what links it? go build -ldflags=-dumpdep prints who refers to whom", name)
	}
}

// TestInitBill prints what a start of the binary from `make build` initializes. Packages and allocations are bounded; the time is
// only printed.
func TestInitBill(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "../../../bin/cnibox", "bridge")
	cmd.Env = []string{"CNI_COMMAND=VERSION", "GODEBUG=inittrace=1"}
	var trace bytes.Buffer
	cmd.Stderr = &trace
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: make build makes it", err)
	}
	type item struct {
		pkg string
		ms  float64
	}
	var items []item
	total, allocs := 0.0, 0
	for s := bufio.NewScanner(&trace); s.Scan(); {
		var i item
		var at float64
		var size, n int
		if got, _ := fmt.Sscanf(s.Text(), "init %s @%f ms, %f ms clock, %d bytes, %d allocs", &i.pkg, &at, &i.ms, &size, &n); got == 5 {
			items, total, allocs = append(items, i), total+i.ms, allocs+n
		}
	}
	if len(items) == 0 {
		t.Fatal("no init trace")
	}
	slices.SortFunc(items, func(a, b item) int { return int(1e6 * (b.ms - a.ms)) })
	if len(items) > maxInits || allocs > maxInitAllocs {
		t.Errorf("%d packages initialise with %d allocations, at most %d and %d are wanted", len(items), allocs, maxInits, maxInitAllocs)
	}
	t.Logf("%d packages initialise with %d allocations in %.2f ms; the dearest:", len(items), allocs, total)
	for _, i := range items[:min(5, len(items))] {
		t.Logf("  %-40s %.3f ms", i.pkg, i.ms)
	}
}
