package policy

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cnibox/cnibox/roles/netpolicy"
	"github.com/cnibox/cnibox/test/await"
)

// followed is a Directory that runs, and what it passed on.
type followed struct {
	*Directory
	t      *testing.T
	mu     sync.Mutex
	table  *netpolicy.Table
	synced bool
	// readsOf is Directory.reads, and puts the number of changes that were passed on.
	readsOf, puts int
	stop          func()
}

// follow runs a Directory until stop is called, or the test ends.
func follow(t *testing.T, path, keep string) *followed {
	t.Helper()
	f := &followed{Directory: &Directory{Path: path, Keep: keep, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}, t: t, table: netpolicy.NewTable()}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		f.Run(ctx, func(change func(*netpolicy.Table)) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.readsOf, f.puts = f.reads, f.puts+1
			if change == nil {
				f.synced = true
			} else {
				change(f.table)
			}
		})
	})
	f.stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	t.Cleanup(f.stop)
	return f
}

// policies describes the policies in force: "default/web 80", and the faults.
func (f *followed) state() (policies, faults []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.table.State()
	for _, p := range s.Policies {
		text := p.Namespace + "/" + p.Name
		for d, rules := range p.Allows {
			for _, r := range rules {
				for _, port := range r.Ports {
					text += fmt.Sprintf(" %d", port.First)
				}
				if len(r.Ports) == 0 {
					text += " all"
				}
			}
			if p.Isolates[d] {
				text += " " + netpolicy.Direction(d).String()
			}
		}
		policies = append(policies, text)
	}
	slices.Sort(policies)
	for _, one := range s.Faults {
		faults = append(faults, strings.ReplaceAll(one.String(), f.Path+"/", ""))
	}
	return policies, faults
}

// until waits until these policies are in force, and the faults begin so.
func (f *followed) until(what string, policies, faults []string) {
	f.t.Helper()
	await.Until(f.t, func() bool {
		is, wrong := f.state()
		return slices.Equal(is, policies) && slices.EqualFunc(wrong, faults, strings.HasPrefix)
	}, func() string {
		is, wrong := f.state()
		return fmt.Sprintf("%s: %q, %q, want %q, %q", what, is, wrong, policies, faults)
	})
}

func write(t *testing.T, path, text string) {
	t.Helper()
	temporary := filepath.Join(t.TempDir(), "new")
	if err := os.WriteFile(temporary, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(temporary, path); err != nil {
		t.Fatal(err)
	}
}

func policyText(name, namespace string, port int) string {
	return fmt.Sprintf(`apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: %s
  namespace: %s
spec:
  podSelector: {}
  ingress:
  - ports:
    - port: %d
`, name, namespace, port)
}

// TestEachFile: each file counts by itself. In place of an invalid one its last valid state is in force, also after a restart, or its namespace
// is denied.
func TestEachFile(t *testing.T) {
	dir, keep := t.TempDir(), filepath.Join(t.TempDir(), "kept")
	path := func(name string) string { return filepath.Join(dir, name) }
	list := func(all ...string) []string { return all }
	write(t, path("web.yaml"), policyText("web", "default", 80))
	misspelt := strings.Replace(policyText("web", "default", 81), "podSelector", "podSelectr", 1)
	f := follow(t, dir, keep)
	f.until("one file", list("default/web 80 Ingress"), nil)

	write(t, path("bad.yaml"), strings.Replace(misspelt, "  namespace: default\n", "", 1))
	f.until("a new invalid file", list("default/web 80 Ingress"), list(`bad.yaml:6: spec.podSelectr: spec: json: unknown field "podSelectr": it has no effect`))
	write(t, path("web.yaml"), policyText("web", "default", 82))
	f.until("a change beside it", list("default/web 82 Ingress"), list("bad.yaml:6"))
	write(t, path("bad.yaml"), strings.Replace(misspelt, "default", "other", 1))
	f.until("one with a namespace", list("default/web 82 Ingress", "other/invalid-bad.yaml Egress Ingress"), list("bad.yaml:7: spec.podSelectr"))
	write(t, path("bad.yaml"), "kind: [")
	denied := list("default/web 82 Ingress", "other/invalid-bad.yaml Egress Ingress") // it may not open by a further fault
	f.until("one that is no YAML", denied, list("bad.yaml:1: YAML: "))
	write(t, path("web.yaml"), misspelt)
	f.until("an invalid change", denied, list("bad.yaml:1", `web.yaml:7: spec.podSelectr: spec: json: unknown field "podSelectr": its last valid state is in force`))
	f.stop()
	f = follow(t, dir, keep)
	f.until("after a restart", list("default/web 82 Ingress"), list("bad.yaml:1", "web.yaml:7"))
	f.stop()
	if err := os.Rename(dir, dir+".old"); err != nil {
		t.Fatal(err)
	}
	f = follow(t, dir, keep)
	f.until("without the directory", list("default/web 82 Ingress"), list(dir+": open "))
	if err := os.Rename(dir+".old", dir); err != nil {
		t.Fatal(err)
	}
	f.until("with the directory again", list("default/web 82 Ingress"), list("bad.yaml:1", "web.yaml:7"))

	write(t, path("bad.yaml"), policyText("web", "default", 83))
	f.until("an object of another file", list("default/web 82 Ingress"), list("bad.yaml: NetworkPolicy default/web is also in web.yaml", "web.yaml:7"))
	if err := os.Remove(path("web.yaml")); err != nil {
		t.Fatal(err)
	}
	f.until("which is gone", list("default/web 83 Ingress"), nil)
	if err := os.Rename(path("bad.yaml"), path("good.yaml")); err != nil {
		t.Fatal(err)
	}
	f.until("a renamed file", list("default/web 83 Ingress"), nil)
	if err := os.Rename(path("good.yaml"), path("no policy")); err != nil {
		t.Fatal(err)
	}
	f.until("no file", nil, nil)
	if left, err := os.ReadDir(keep); err != nil || len(left) > 0 {
		t.Errorf("copies of files that are gone: %v, %v", left, err)
	}
}

// TestHalfWritten: a file is not read while a program writes it, whatever other files do, and not at the start of an agent either. It is
// read when it is closed and complete.
func TestHalfWritten(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "web.yaml")
	write(t, path, policyText("web", "default", 80))
	f := follow(t, dir, "")
	before := "default/web 80 Ingress"
	f.until("the whole file", []string{before}, nil)
	for i, cut := range []string{"spec:\n", "{}\n", "ingress:\n  -", "- ports:\n", "port: 8"} {
		text := policyText("web", "default", 81+i)
		file, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		half := text[:strings.Index(text, cut)+len(cut)]
		if _, err := file.WriteString(half); err != nil {
			t.Fatal(err)
		}
		other := fmt.Sprintf("other-%d", i)
		write(t, filepath.Join(dir, "z.yaml"), policyText(other, "default", 90))
		beside := "default/" + other + " 90 Ingress"
		f.until("half a file, cut after "+cut, []string{beside, before}, nil)
		if i == 0 {
			starting := follow(t, dir, "")
			starting.until("for a new agent", []string{beside}, []string{"web.yaml: a program has it open for writing"})
			starting.stop()
		}
		if _, err := file.WriteString(text[len(half):]); err != nil {
			t.Fatal(err)
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
		before = fmt.Sprintf("default/web %d Ingress", 81+i)
		f.until("the whole file after "+cut, []string{beside, before}, nil)
	}
	// A program that opens the file for each part, and one that says where the document ends.
	f.mu.Lock()
	puts := f.puts
	f.mu.Unlock()
	text := policyText("web", "default", 80)
	for _, part := range []string{text[:strings.Index(text, "ports")-1], "\n    ports: [{port: 89}]\n...\n"} {
		file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if part[0] == 'a' {
			_ = file.Truncate(0)
		}
		if _, err := file.WriteString(part); err != nil {
			t.Fatal(err)
		}
		_ = file.Close()
	}
	f.until("a file in two parts", []string{"default/other-4 90 Ingress", "default/web 89 Ingress"}, nil)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.puts > puts+1 {
		t.Errorf("the first part was in force: %d changes", f.puts-puts)
	}
}

// TestFilesRead: a change reads the file that changed, and no other one, also if a link is changed to lead to another directory.
func TestFilesRead(t *testing.T) {
	root := t.TempDir()
	const files = 1000
	for _, dir := range []string{"a", "b"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for i := range files {
		if err := os.WriteFile(filepath.Join(root, "a", fmt.Sprint(i, ".yaml")), []byte(policyText(fmt.Sprint("p", i), "default", 80)+"...\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(root, "b", "one.yaml"), policyText("one", "default", 80))
	link := filepath.Join(root, "policy.d")
	point := func(to string) {
		t.Helper()
		if err := os.Symlink(to, link+".new"); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(link+".new", link); err != nil {
			t.Fatal(err)
		}
	}
	point("a")
	f := follow(t, link, "")
	deadline := time.Now().Add(rescanTime / 2)
	has := func(n int, text string, reads int) {
		t.Helper()
		await.Until(t, func() bool {
			policies, _ := f.state()
			return len(policies) == n && slices.Contains(policies, text)
		}, func() string { return "no " + text })
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.readsOf != reads {
			t.Errorf("%s: %d files were read, want %d", text, f.readsOf, reads)
		}
	}
	has(files, "default/p7 80 Ingress", files)
	write(t, filepath.Join(root, "a", "7.yaml"), policyText("p7", "default", 81))
	has(files, "default/p7 81 Ingress", files+1)
	point("b")
	has(1, "default/one 80 Ingress", files+2)
	point("a")
	has(files, "default/p7 81 Ingress", 2*files+2)
	if time.Now().After(deadline) {
		t.Error("a rescan found the changes")
	}
}
