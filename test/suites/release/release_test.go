//go:build release

// Package release makes a release of a tagged clone and uses every file of it.
package release

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// run executes a program and fails the test with its output if it fails.
func run(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	out, err := try(t, dir, env, name, args...)
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return out
}

func try(t *testing.T, dir string, env []string, name string, args ...string) (string, error) {
	t.Helper()
	c := exec.CommandContext(t.Context(), name, args...)
	c.Dir, c.Env = dir, append(os.Environ(), env...)
	out, err := c.CombinedOutput()
	return string(out), err
}

// bin returns the path of a program that make built.
func bin(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs("../../../bin/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestRelease makes two releases, and the first of them twice.
func TestRelease(t *testing.T) {
	dir := t.TempDir()
	repo := filepath.Join(dir, "repo")
	run(t, "", nil, "git", "clone", "--quiet", "--no-tags", "../../..", repo)
	run(t, repo, nil, "git", "tag", "v0.1.0")
	commit := strings.TrimSpace(run(t, repo, nil, "git", "rev-parse", "v0.1.0"))
	run(t, repo, nil, "git", "-c", "user.name=x", "-c", "user.email=x@localhost", "commit", "--quiet", "--allow-empty", "--message", "next")
	run(t, repo, nil, "git", "tag", "v0.2.0-rc.1")
	key := filepath.Join(dir, "key")
	run(t, "", nil, "minisign", "-G", "-W", "-p", key+".pub", "-s", key)
	make := func(tag, out string, args ...string) string {
		out = filepath.Join(dir, out)
		run(t, "", nil, bin(t, "release"), append([]string{"-version", tag, "-repo", repo, "-tools", bin(t, ""), "-out", out}, args...)...)
		return out
	}
	first := make("v0.1.0", "first", "-key", key)
	t.Setenv("GOCACHE", filepath.Join(dir, "cache")) // nothing of the first release is used for the second
	again := make("v0.1.0", "again")
	next := make("v0.2.0-rc.1", "next")

	t.Run("refused", func(t *testing.T) {
		for name, args := range map[string][]string{
			"no such tag: git tag v9.9.9": {"-version", "v9.9.9", "-out", filepath.Join(dir, "none")},
			"semantic version":            {"-version", "0.1", "-out", filepath.Join(dir, "none")},
			"exists":                      {"-version", "v0.1.0", "-out", first},
			"key":                         {"-version", "v0.1.0", "-out", filepath.Join(dir, "none"), "-key", filepath.Join(dir, "absent")},
		} {
			word := name[strings.LastIndex(name, ":")+1:]
			out, err := try(t, "", nil, bin(t, "release"), append([]string{"-repo", repo}, args...)...)
			if err == nil || !strings.Contains(out, strings.TrimSpace(word)) {
				t.Errorf("%q: error %v, output %q", args, err, out)
			}
		}
		if left, _ := filepath.Glob(filepath.Join(dir, ".release-*")); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	})
	t.Run("reproducible", func(t *testing.T) {
		if a, b := read(t, first, "SHA256SUMS"), read(t, again, "SHA256SUMS"); a != b {
			t.Errorf("two releases of one commit differ:\n%s\n%s", a, b)
		}
	})
	t.Run("sums", func(t *testing.T) { checkSums(t, first, key, commit) })
	t.Run("components", func(t *testing.T) { checkComponents(t, first) })
	t.Run("vulnerabilities", func(t *testing.T) {
		const product = "pkg:golang/github.com/cnibox/cnibox@v0.1.0"
		for _, name := range []string{"CVE-2019-9946", "CVE-2020-10749", "CVE-2021-20206", "CVE-2025-67499", "CVE-2026-32241"} {
			out := run(t, "", nil, bin(t, "vex"), filepath.Join(first, "cnibox-v0.1.0.openvex.json"), product, name)
			if out != "not_affected vulnerable_code_not_present\n" {
				t.Errorf("%s: %q", name, out)
			}
		}
	})
	t.Run("architectures", func(t *testing.T) { checkArchitectures(t, first) })
	t.Run("deb", func(t *testing.T) { checkPackages(t, debian(newRoot(t)), first, next) })
	t.Run("rpm", func(t *testing.T) { checkPackages(t, redHat(newRoot(t)), first, next) })
	t.Run("image", func(t *testing.T) { checkImage(t, first) })
	t.Run("manifests", func(t *testing.T) {
		const file = "cnibox-v0.2.0-rc.1-kubernetes.tar.gz"
		if bundle := run(t, "", nil, "tar", "-tf", filepath.Join(next, "cnibox-v0.2.0-rc.1-bundle.tar")); !strings.Contains(bundle, "/"+file+"\n") {
			t.Errorf("the bundle lacks %s:\n%s", file, bundle)
		}
		unpacked := t.TempDir()
		run(t, "", nil, "tar", "-C", unpacked, "--strip-components", "1", "-xf", filepath.Join(next, file))
		checkPages(t, unpacked)
		text := run(t, unpacked, nil, "find", "examples/kubernetes", "examples/helm", "-type", "f", "-exec", "cat", "{}", "+")
		for _, want := range []string{"newTag: v0.2.0-rc.1\n", "appVersion: v0.2.0-rc.1\n", "\nversion: 0.2.0-rc.1\n", "image: ghcr.io/cnibox/cnibox:v0.2.0-rc.1\n"} {
			if !strings.Contains(text, want) {
				t.Errorf("the manifests lack %q", want)
			}
		}
		if strings.Contains(text, "v0.1.0") {
			t.Error("the manifests name the version of the sources")
		}
	})
	t.Run("arm64", func(t *testing.T) {
		out := run(t, "", nil, "qemu-aarch64-static", filepath.Join(first, "cnibox-v0.1.0-linux-arm64"), "version")
		if !strings.HasPrefix(out, "cnibox v0.1.0 (go") || !strings.Contains(out, "arm64") {
			t.Errorf("version: %q", out)
		}
		out = run(t, "", []string{"CNI_COMMAND=VERSION"}, "qemu-aarch64-static", "-0", "bridge", filepath.Join(first, "cnibox-v0.1.0-linux-arm64"))
		if !strings.Contains(out, `"1.1.0"`) {
			t.Errorf("VERSION: %q", out)
		}
	})
	t.Run("units", func(t *testing.T) { checkUnits(t, filepath.Join(first, "cnibox-v0.1.0-linux-amd64")) })
	t.Run("manual", func(t *testing.T) {
		unpacked := t.TempDir()
		run(t, "", nil, "tar", "-C", unpacked, "--strip-components", "1", "-xf", filepath.Join(first, "cnibox-v0.1.0-linux-amd64.tar.gz"))
		checkPages(t, unpacked)
		for _, want := range []string{"\n.SH \"cnibox state repair: ", "\n  \\-\\-drain ", "\nexit codes:\n"} {
			if !strings.Contains(read(t, unpacked, "cnibox.8"), want) {
				t.Errorf("the manual page has no %q", want)
			}
		}
		for _, want := range []string{"cnibox", "LICENSE", "THIRD-PARTY-NOTICES", "cnibox.8", "_cnibox"} {
			if _, err := os.Stat(filepath.Join(unpacked, want)); err != nil {
				t.Error(err)
			}
		}
	})
}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func decode(t *testing.T, doc string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(doc), into); err != nil {
		t.Fatalf("%v: %s", err, doc)
	}
}

// checkSums compares the checksums with the files and the provenance, and verifies the signature. A file with one other
// byte must not pass.
func checkSums(t *testing.T, dir, key, commit string) {
	listed := map[string]string{}
	for line := range strings.Lines(read(t, dir, "SHA256SUMS")) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		listed[name] = sum
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if strings.HasPrefix(f.Name(), "SHA256SUMS") {
			continue
		}
		sum := sha256.Sum256([]byte(read(t, dir, f.Name())))
		if got := hex.EncodeToString(sum[:]); listed[f.Name()] != got {
			t.Errorf("%s: sum %s, listed %q", f.Name(), got, listed[f.Name()])
		}
	}
	var statement struct {
		Subject []struct {
			Name   string
			Digest map[string]string
		}
		Predicate struct {
			BuildDefinition struct {
				ResolvedDependencies []struct{ Digest map[string]string }
			}
		}
	}
	decode(t, read(t, dir, "cnibox-v0.1.0.intoto.json"), &statement)
	for _, s := range statement.Subject {
		if s.Digest["sha256"] == "" || s.Digest["sha256"] != listed[s.Name] {
			t.Errorf("provenance of %s: %s, listed %s", s.Name, s.Digest["sha256"], listed[s.Name])
		}
	}
	if d := statement.Predicate.BuildDefinition.ResolvedDependencies; len(statement.Subject) < 11 || len(d) == 0 || d[0].Digest["gitCommit"] != commit {
		t.Errorf("provenance: %d subjects, sources %v, want commit %s", len(statement.Subject), d, commit)
	}
	list := filepath.Join(dir, "SHA256SUMS")
	run(t, "", nil, "minisign", "-V", "-p", key+".pub", "-m", list)
	forged := filepath.Join(t.TempDir(), "SHA256SUMS")
	for name, b := range map[string]string{forged: "0" + read(t, dir, "SHA256SUMS"), forged + ".minisig": read(t, dir, "SHA256SUMS.minisig")} {
		if err := os.WriteFile(name, []byte(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := try(t, "", nil, "minisign", "-V", "-p", key+".pub", "-m", forged); err == nil {
		t.Errorf("a changed list passes: %s", out)
	}
}

// checkComponents compares the bills of materials with the modules that Go recorded in the program.
func checkComponents(t *testing.T, dir string) {
	var cyclone struct {
		BomFormat  string
		Components []struct {
			Name, Version string
			Licenses      []struct{ Expression string }
		}
	}
	decode(t, read(t, dir, "cnibox-v0.1.0-linux-amd64.cdx.json"), &cyclone)
	var spdx struct {
		SpdxVersion string
		Packages    []struct{ Name, VersionInfo, LicenseConcluded string }
	}
	decode(t, read(t, dir, "cnibox-v0.1.0-linux-arm64.spdx.json"), &spdx)
	if cyclone.BomFormat != "CycloneDX" || !strings.HasPrefix(spdx.SpdxVersion, "SPDX-") {
		t.Fatalf("forms %q and %q", cyclone.BomFormat, spdx.SpdxVersion)
	}
	have, licence := map[string]int{}, regexp.MustCompile(`^(Apache-2\.0|MIT|BSD-[23]-Clause)( AND (Apache-2\.0|MIT|BSD-[23]-Clause))*$`)
	for _, c := range cyclone.Components {
		have[c.Name+" "+c.Version] |= 1
		if len(c.Licenses) != 1 || !licence.MatchString(c.Licenses[0].Expression) {
			t.Errorf("licences of %s: %v", c.Name, c.Licenses)
		}
	}
	for _, p := range spdx.Packages {
		have[p.Name+" "+p.VersionInfo] |= 2
		if !licence.MatchString(p.LicenseConcluded) {
			t.Errorf("licence of %s: %q", p.Name, p.LicenseConcluded)
		}
	}
	n := 0
	for line := range strings.Lines(run(t, "", nil, "go", "version", "-m", filepath.Join(dir, "cnibox-v0.1.0-linux-amd64"))) {
		f := strings.Fields(line)
		if len(f) < 3 || f[0] != "dep" {
			continue
		}
		n++
		if have[f[1]+" "+f[2]] != 3 {
			t.Errorf("module %s %s is not in both bills of materials", f[1], f[2])
		}
	}
	if n < 10 {
		t.Errorf("the program records %d modules", n)
	}
}

// checkArchitectures checks that each kind of package exists for each processor, names it, and has its program.
func checkArchitectures(t *testing.T, dir string) {
	sum := func(content string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(content))) }
	for _, v := range []struct{ arch, deb, rpm, apk string }{
		{"amd64", "cnibox_0.1.0_amd64.deb", "cnibox-0.1.0-1.x86_64.rpm", "cnibox_0.1.0_x86_64.apk"},
		{"arm64", "cnibox_0.1.0_arm64.deb", "cnibox-0.1.0-1.aarch64.rpm", "cnibox_0.1.0_aarch64.apk"},
	} {
		machine := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[v.arch]
		if have := run(t, dir, nil, "dpkg-deb", "--field", v.deb, "Architecture"); have != v.arch+"\n" {
			t.Errorf("%s is for %q", v.deb, have)
		}
		if have := run(t, dir, nil, "rpm", "-qp", "--queryformat", "%{ARCH}", v.rpm); have != machine {
			t.Errorf("%s is for %q", v.rpm, have)
		}
		// An .apk is a tar archive in several gzip streams: what describes it, and then its files.
		if have := run(t, dir, nil, "tar", "--ignore-zeros", "--warning=no-unknown-keyword", "-xzOf", v.apk, ".PKGINFO"); !strings.Contains(have, "\narch = "+machine+"\n") {
			t.Errorf("%s:\n%s", v.apk, have)
		}
		want := sum(read(t, dir, "cnibox-v0.1.0-linux-"+v.arch))
		for name, have := range map[string]string{
			v.apk: run(t, dir, nil, "tar", "--ignore-zeros", "--warning=no-unknown-keyword", "-xzOf", v.apk, "usr/bin/cnibox"),
			v.deb: run(t, dir, nil, "sh", "-c", "dpkg-deb --fsys-tarfile "+v.deb+" | tar -xOf - ./usr/bin/cnibox"),
		} {
			if sum(have) != want {
				t.Errorf("the program in %s is not the released one", name)
			}
		}
	}
}

// root is a directory with a shell and /proc, in which packages are installed.
type root string

func newRoot(t *testing.T) root {
	dir := t.TempDir()
	for _, d := range []string{"bin", "proc", "run", "tmp", "var/lib/dpkg/info", "var/lib/dpkg/updates", "opt/cni/bin", "etc"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	run(t, "", nil, "cp", "/bin/busybox", filepath.Join(dir, "bin"))
	for _, name := range []string{"sh", "ls"} {
		if err := os.Symlink("busybox", filepath.Join(dir, "bin", name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"status", "available"} {
		if err := os.WriteFile(filepath.Join(dir, "var/lib/dpkg", name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	proc := filepath.Join(dir, "proc")
	if err := unix.Mount("proc", proc, "proc", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(proc, unix.MNT_DETACH) })
	return root(dir)
}

// chroot executes a program in the root.
func (r root) chroot(t *testing.T, env []string, stdin string, name string, args ...string) (string, error) {
	t.Helper()
	c := exec.CommandContext(t.Context(), "chroot", append([]string{string(r), name}, args...)...)
	c.Env, c.Stdin = append([]string{"PATH=/usr/bin:/bin"}, env...), strings.NewReader(stdin)
	out, err := c.CombinedOutput()
	return string(out), err
}

// manager is a package manager that works in a root.
type manager struct {
	root
	file                             func(version string) string
	install, upgrade, remove, verify []string
}

func debian(r root) manager {
	dpkg := []string{"dpkg", "--root=" + string(r), "--force-not-root", "--log=/dev/null"}
	return manager{
		root: r, file: func(v string) string { return "cnibox_" + v + "_amd64.deb" },
		install: append(dpkg, "--install"), upgrade: append(dpkg, "--install"),
		remove: append(dpkg, "--purge", "cnibox"), verify: append(dpkg, "--verify", "cnibox"),
	}
}

func redHat(r root) manager {
	rpm := []string{"rpm", "--root", string(r), "--nodeps"}
	return manager{
		root: r, file: func(v string) string { return "cnibox-" + v + "-1.x86_64.rpm" },
		install: append(rpm, "--install"), upgrade: append(rpm, "--upgrade"),
		remove: append(rpm, "--erase", "cnibox"), verify: append(rpm, "--verify", "cnibox"),
	}
}

func (m manager) do(t *testing.T, command []string, more ...string) (string, error) {
	t.Helper()
	command = append(slices.Clone(command), more...)
	return try(t, "", nil, command[0], command[1:]...)
}

func (m manager) must(t *testing.T, command []string, more ...string) {
	t.Helper()
	if out, err := m.do(t, command, more...); err != nil {
		t.Fatalf("%q %q: %v\n%s", command, more, err, out)
	}
}

const conf = `{"cniVersion": "1.0.0", "name": "pkg", "type": "bridge", "bridge": "pkg0", "isGateway": true,
	"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.201.0.0/24"}]]}}`

// checkPackages installs, upgrades and removes a package in a root in which another program is a plugin, with a
// changed configuration file and an attached container.
func checkPackages(t *testing.T, m manager, first, next string) {
	plugins := filepath.Join(string(m.root), "opt/cni/bin")
	foreign := filepath.Join(plugins, "macvlan")
	if err := os.WriteFile(foreign, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	m.must(t, m.install, filepath.Join(first, m.file("0.1.0")))
	m.must(t, m.verify)
	checkPages(t, filepath.Join(string(m.root), "usr/share/doc/cnibox"))
	if out, err := m.chroot(t, []string{"CNI_COMMAND=VERSION"}, "", "/opt/cni/bin/bridge"); err != nil || !strings.Contains(out, `"1.1.0"`) {
		t.Fatalf("VERSION: %v, %s", err, out)
	}
	if got := read(t, plugins, "macvlan"); got != "#!/bin/sh\n" {
		t.Errorf("another program's plugin was replaced: %q", got[:min(40, len(got))])
	}
	settings := filepath.Join(string(m.root), "etc/default/cnibox-agent")
	if err := os.WriteFile(settings, []byte("FLANNELD_IFACE=eth7\n"), 0o600); err != nil {
		t.Fatal(err)
	}

	container := newNetns(t)
	call := func(command string) {
		t.Helper()
		env := []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=c1", "CNI_NETNS=" + container, "CNI_IFNAME=eth0", "CNI_PATH=/opt/cni/bin"}
		if out, err := m.chroot(t, env, conf, "/opt/cni/bin/bridge"); err != nil {
			t.Fatalf("%s: %v, %s", command, err, out)
		}
	}
	call("ADD")
	before, err := os.Lstat(filepath.Join(plugins, "bridge"))
	if err != nil {
		t.Fatal(err)
	}
	if out, err := m.do(t, m.remove); err == nil || !strings.Contains(out, "containers are attached") {
		t.Fatalf("removed with an attached container: %v, %s", err, out)
	}
	if after, err := os.Lstat(filepath.Join(plugins, "bridge")); err != nil || !os.SameFile(before, after) {
		t.Errorf("the refused removal replaced a plugin: %v", err)
	}
	// The runtime can still detach containers.
	call("DEL")
	call("ADD")
	m.must(t, m.upgrade, filepath.Join(next, m.file("0.2.0~rc.1")))
	if out, err := m.chroot(t, nil, "", "/opt/cni/bin/cnibox", "version"); err != nil || !strings.HasPrefix(out, "cnibox v0.2.0-rc.1 ") {
		t.Errorf("version after the upgrade: %v, %s", err, out)
	}
	if got := read(t, filepath.Dir(settings), "cnibox-agent"); got != "FLANNELD_IFACE=eth7\n" {
		t.Errorf("the upgrade replaced the configuration: %q", got)
	}
	call("DEL")
	m.must(t, m.remove)
	left, err := filepath.Glob(plugins + "/*")
	if err != nil || !slices.Equal(left, []string{foreign}) {
		t.Errorf("left in the plugin directory: %q, %v", left, err)
	}
	if state := filepath.Join(string(m.root), "var/lib/cnibox"); slices.Contains(m.remove, "--purge") {
		if _, err := os.Lstat(state); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the purge left %s: %v", state, err)
		}
	}
	if found, _ := filepath.Glob(string(m.root) + "/usr/*/*cnibox*"); len(found) > 0 {
		t.Errorf("left behind: %q", found)
	}
}

// checkPages compares the files to which the pages of a directory's documentation link with those that exist there. Sources are
// not in a release.
func checkPages(t *testing.T, dir string) {
	t.Helper()
	links, sources := regexp.MustCompile(`\]\(([^)#:]+)[)#]`), regexp.MustCompile(`^(\.\./)?(roles|test)/`)
	pages, err := filepath.Glob(dir + "/*.md")
	if err != nil {
		t.Fatal(err)
	}
	more, err := filepath.Glob(dir + "/docs/*.md")
	if err != nil || len(pages) < 4 || len(more) < 20 {
		t.Fatalf("%s has %d and %d pages, %v", dir, len(pages), len(more), err)
	}
	for _, page := range append(pages, more...) {
		for _, link := range links.FindAllStringSubmatch(read(t, filepath.Dir(page), filepath.Base(page)), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), link[1])); err != nil && !sources.MatchString(link[1]) {
				t.Errorf("%s: %v", page, err)
			}
		}
	}
}

// newNetns starts a process in a network namespace of its own and returns the namespace's path.
func newNetns(t *testing.T) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), "cat")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = c.Wait()
	})
	return fmt.Sprintf("/proc/%d/ns/net", c.Process.Pid)
}

// checkImage loads the image into podman's storage and runs it.
func checkImage(t *testing.T, dir string) {
	work := t.TempDir()
	containers := filepath.Join(work, "containers.conf")
	err := os.WriteFile(containers, []byte("[containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=1024:1024\"]\nlog_driver = \"k8s-file\"\n"+
		"[engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\nruntime = \"runc\"\n"), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	podman := func(args ...string) string {
		t.Helper()
		own := []string{"--root", filepath.Join(work, "storage"), "--runroot", filepath.Join(work, "run"), "--tmpdir", filepath.Join(work, "tmp"), "--storage-driver", "vfs"}
		return run(t, "", []string{"CONTAINERS_CONF=" + containers}, "podman", append(own, args...)...)
	}
	out := podman("load", "--quiet", "--input", filepath.Join(dir, "cnibox-v0.1.0-image.oci.tar"))
	_, name, ok := strings.Cut(strings.TrimSpace(out), ": ")
	if !ok {
		t.Fatalf("podman load: %q", out)
	}
	if out := podman("image", "inspect", "--format", "{{.Architecture}} {{.Config.Labels}}", name); !strings.HasPrefix(out, "amd64 ") || !strings.Contains(out, "v0.1.0") {
		t.Errorf("image: %q", out)
	}
	mounted := strings.TrimSpace(podman("image", "mount", name))
	defer podman("image", "unmount", name)
	a, b := read(t, mounted, "usr/bin/cnibox"), read(t, dir, "cnibox-v0.1.0-linux-amd64")
	if a != b {
		t.Error("the image's program is not the release's")
	}
}

// checkUnits has systemd judge the units, with the program where it is.
func checkUnits(t *testing.T, program string) {
	files, err := filepath.Glob("../../../examples/systemd/cn*.s*")
	if err != nil || len(files) != 3 {
		t.Fatalf("units %q, %v", files, err)
	}
	dir := t.TempDir()
	args := []string{"verify", "--man=no"}
	for _, f := range files {
		unit := strings.NewReplacer("/usr/bin/cnibox", program, "/opt/cni/bin/dhcp", program).Replace(read(t, filepath.Dir(f), filepath.Base(f)))
		path := filepath.Join(dir, filepath.Base(f))
		if err := os.WriteFile(path, []byte(unit), 0o644); err != nil {
			t.Fatal(err)
		}
		args = append(args, path)
	}
	if out, err := try(t, "", nil, "systemd-analyze", args...); err != nil || out != "" {
		t.Errorf("%v: %s", err, out)
	}
}
