// Package nights plays nodes that broke in the night, each with its healthy neighbour. On the broken node the commands of the product
// name the cause, and the command that they print mends it. On the neighbour, which differs in what does not matter, they print nothing.
package nights

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/tools/txtar"

	"github.com/cnibox/cnibox/test/suites/nights/recording"
)

// tools are the programs of a node. Those of busybox follow.
var (
	tools = strings.Fields("sh ip nft iptables ip6tables iptables-legacy bridge tc nsenter unshare mount umount mkdir ln rm cat sed grep chmod cp mv " +
		"touch flock sysctl kill head seq dnsmasq sleep iptables-nft-restore strace ebtables")
	applets = strings.Fields("httpd nc ping true timeout hostname")
)

// ownTools are programs of a node that are this one.
var ownTools = map[string]func([]string) error{"xdp": attachXDP, "dns": askFrom, "record": record}

// product is the built program.
var product string

func TestMain(m *testing.M) {
	if tool := filepath.Base(os.Args[0]); ownTools[tool] != nil {
		if err := ownTools[tool](os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, tool+":", err)
			os.Exit(1)
		}
		return
	}
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "cnibox-nights-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	product = filepath.Join(dir, "cnibox")
	if out, err := exec.Command("go", "build", "-trimpath", "-tags", "urfave_cli_no_docs", "-ldflags", "-s -w", "-o", product, "../../..").CombinedOutput(); err != nil {
		return 0, fmt.Errorf("build: %w\n%s", err, out)
	}
	return m.Run(), nil
}

// node is a node in namespaces of its own.
type node struct {
	t *testing.T
	// pid is that of the process that keeps the namespaces, and work is the node's directory.
	pid, work string
	env       []string
}

// boot makes a node.
func boot(t *testing.T) *node {
	t.Helper()
	work := t.TempDir()
	path := filepath.Join(work, "path")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	links := map[string]string{"cnibox": product}
	for tool := range ownTools {
		links[tool] = self
	}
	for _, tool := range tools {
		file, err := exec.LookPath(tool)
		if err != nil {
			t.Fatal(err)
		}
		links[tool] = file
	}
	for _, applet := range applets {
		links[applet] = "/bin/busybox"
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, file := range links {
		if err := os.Symlink(file, filepath.Join(path, name)); err != nil {
			t.Fatal(err)
		}
	}
	lib, err := filepath.Abs("testdata/node.sh")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, work: work, env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "WORK=" + work, "SELF=" + product, "LIB=" + lib}}
	c := exec.Command("unshare", "--net", "--mount", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc", "--propagation", "private", "sleep", "infinity")
	c.Env = n.env
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// Of a process namespace the first process ends last: then nothing writes into the node's directory any more.
		if first, err := strconv.Atoi(n.pid); err == nil {
			_ = unix.Kill(first, unix.SIGKILL)
		} else {
			_ = c.Process.Kill()
		}
		_ = c.Wait() // it was killed
	})
	for n.pid == "" {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", c.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		n.pid = strings.TrimSpace(string(raw))
	}
	comm := func() string { b, _ := os.ReadFile("/proc/" + n.pid + "/comm"); return string(b) }
	for comm() != "sleep\n" { // then the namespaces are complete
	}
	n.must("boot")
	return n
}

// sh runs a script on the node, and returns its output and exit code.
func (n *node) sh(script string) (out string, code int) {
	n.t.Helper()
	ctx, stop := context.WithTimeout(n.t.Context(), time.Minute)
	defer stop()
	c := exec.CommandContext(ctx, "nsenter", "--target", n.pid, "--net", "--mount", "--pid", "--uts", "sh", "-c", ". $LIB\n"+script)
	c.Env = n.env
	var b bytes.Buffer
	c.Stdout, c.Stderr = &b, &b
	c.WaitDelay = time.Second // a server keeps the output open
	_ = c.Run()
	if ctx.Err() != nil {
		n.t.Fatalf("%s: %v\n%s", script, ctx.Err(), &b)
	}
	return b.String(), c.ProcessState.ExitCode()
}

func (n *node) must(script string) {
	n.t.Helper()
	if out, code := n.sh(script); code != 0 {
		n.t.Fatalf("%s\nexit code %d\n%s", script, code, out)
	}
}

// night is a script of testdata.
type night struct {
	// sections are those of scripts by name. commands are those of the product, which name the cause.
	sections map[string]string
	commands []txtar.File
}

// TestNights plays the nights, of which a short run has those with a section "short". The recordings of all are played by the package recording.
func TestNights(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no nights", err)
	}
	for _, file := range files {
		a, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		n := night{sections: map[string]string{}}
		for _, f := range a.Files {
			if strings.HasPrefix(f.Name, "cnibox ") {
				n.commands = append(n.commands, f)
			} else {
				n.sections[f.Name] = string(f.Data)
			}
		}
		if _, is := n.sections["short"]; !is && testing.Short() {
			continue
		}
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			n.play(t)
		})
	}
}

// play plays a night: the neighbour, the broken node, and what repair makes of it.
func (n *night) play(t *testing.T) {
	prepare, broken, works := n.sections["prepare"], n.sections["broken"], n.sections["works"]
	neighbour := boot(t)
	neighbour.must(prepare)
	neighbour.must(n.sections["healthy"])
	_, isLate := n.sections["late"]
	neighbour.healthy(n.commands, works, isLate)
	recorded := recording.Night{Healthy: neighbour.record(n.commands)}
	if broken == "" {
		compare(t, recorded)
		return
	}
	one := neighbour
	if n.sections["healthy"] != "" {
		one = boot(t)
		one.must(prepare)
	}
	one.must(broken)
	if out, code := one.sh(works); code == 0 && works != "" {
		t.Errorf("it works on the broken node\n%s", out)
	}
	for _, c := range n.commands {
		one.names(c)
	}
	recorded.Broken = one.record(n.commands)
	compare(t, recorded)
	if t.Failed() || *update {
		return
	}
	if mend, by := n.sections["mend"]; by { // nothing that a node can run
		one.must(mend)
	} else {
		one.mend(n.commands[0].Name)
	}
	one.healthy(n.commands, works, isLate)
	broke := boot(t)
	broke.must(prepare)
	had := broke.census()
	broke.must(broken)
	broke.harmless(n.commands, had)
	broke.safe()
}

// harmless runs every command that is printed for the broken node and that changes something, whatever it is about. It checks that no pod
// loses by it what it had.
func (n *node) harmless(commands []txtar.File, had []string) {
	n.t.Helper()
	var worked []string
	for _, c := range append([]txtar.File{{Name: "cnibox doctor"}, {Name: "cnibox diff"}}, commands...) {
		for _, fix := range n.fixes(c.Name) {
			if looks := strings.HasPrefix(fix, "cnibox ") && fix != "cnibox repair"; looks || strings.HasPrefix(fix, "kubectl delete pod") {
				continue
			}
			if worked == nil {
				worked = slices.DeleteFunc(n.census(), func(line string) bool { return !slices.Contains(had, line) })
			}
			out, _ := n.sh("set +e\n" + strings.NewReplacer("cnibox repair", "cnibox repair --yes").Replace(fix))
			var lost []string
			const tries = 5 // a neighbour may have to be asked again
			for range tries {
				now := n.census()
				lost = slices.DeleteFunc(slices.Clone(worked), func(line string) bool { return slices.Contains(now, line) })
				if len(lost) == 0 {
					break
				}
			}
			if len(lost) > 0 {
				n.t.Errorf("%s: after\n$ %s\n%s\nthese are lost: %s", c.Name, fix, out, strings.Join(lost, ", "))
			}
		}
	}
}

// census returns what each pod has, a fact a line.
func (n *node) census() []string {
	n.t.Helper()
	out, _ := n.sh("set +e\ncensus")
	return strings.Split(strings.TrimSpace(out), "\n")
}

// fixes returns the commands that a command prints.
func (n *node) fixes(command string) (all []string) {
	n.t.Helper()
	out, _ := n.sh(command + " --json 2>/dev/null")
	type fixed struct{ Fix string }
	var one struct {
		Fix      string
		Findings []fixed
	}
	var several []fixed
	if json.Unmarshal([]byte(out), &one) != nil {
		if err := json.Unmarshal([]byte(out), &several); err != nil {
			n.t.Fatalf("%s: %v\n%s", command, err, out)
		}
	}
	for _, f := range slices.Concat([]fixed{{one.Fix}}, one.Findings, several) {
		if f.Fix != "" && !slices.Contains(all, f.Fix) {
			all = append(all, f.Fix)
		}
	}
	return all
}

// healthy checks that no command prints anything. isLate means that a firewall began after the pods, which lack the rules that they would
// get now.
func (n *node) healthy(commands []txtar.File, works string, isLate bool) {
	n.t.Helper()
	const tries = 10 // a neighbour that did not answer is asked again after a second
	for i := range tries {
		out, code := n.sh(works)
		if code == 0 {
			break
		}
		if i == tries-1 {
			n.t.Errorf("it does not work: exit code %d\n%s", code, out)
		}
	}
	all := append([]txtar.File{{Name: "cnibox doctor"}}, commands...)
	if !isLate {
		all = append(all, txtar.File{Name: "cnibox diff"})
	}
	for _, c := range all {
		if out, code := n.sh(c.Name); code != 0 || strings.Contains(out, "stopped: ") || strings.Contains(out, "\ninfo\t") {
			n.t.Errorf("healthy: %s: exit code %d\n%s", c.Name, code, out)
		}
	}
}

// names checks that the output of a command has what a section wants.
func (n *node) names(c txtar.File) {
	n.t.Helper()
	out, _ := n.sh(c.Name)
	for line := range strings.Lines(string(c.Data)) {
		if want := strings.TrimSuffix(line, "\n"); want != "" && !regexp.MustCompile("(?m)"+want).MatchString(out) {
			n.t.Errorf("%s: no %q in\n%s", c.Name, want, out)
		}
	}
}

// mend runs the commands that a command prints until it prints none.
func (n *node) mend(command string) {
	n.t.Helper()
	var ran []string
	for range 4 {
		all := n.fixes(command)
		if len(all) == 0 {
			break
		}
		fix := strings.NewReplacer("cnibox repair", "cnibox repair --yes").Replace(all[0])
		answer, code := n.sh(fix)
		ran = append(ran, "$ "+fix+"\n"+answer+"[exit code "+strconv.Itoa(code)+"]")
	}
	n.t.Logf("%s", strings.Join(ran, "\n"))
}

// safe checks that after every repair a neighbour on the wire does not reach a service on the node's loopback, whatever happens to the
// rules.
func (n *node) safe() {
	n.t.Helper()
	out, _ := n.sh(`set +e
cnibox repair --yes
cnibox doctor --json >$WORK/report
cnibox doctor --fix $WORK/report
nft flush ruleset`)
	n.must(`mac=$(ip -br link show eth0 | sed 's/.* \([0-9a-f:]\{17\}\) .*/\1/')
in_pod out sh -c "echo 1 >/proc/sys/net/ipv4/conf/all/route_localnet; ip addr del 127.0.0.1/8 dev lo; ip route add 127.0.0.1 via 192.0.2.1 src 192.0.2.9; ip neigh replace 192.0.2.1 lladdr $mac dev eth0"`)
	if _, code := n.sh("get out 127.0.0.1 9000"); code == 0 {
		n.t.Errorf("the node's loopback is reachable from outside after\n%s", out)
	}
}
