package dispatch

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles"
)

func TestDelegateLookup(t *testing.T) {
	x := &actor{name: "x"}
	s := newSetting(t, x)
	second := t.TempDir()
	s.req.Path = []string{"", "/nonexistent", s.dir, second}
	for _, typ := range []string{"", ".", "..", "a/x", "/bin/true", "x", "a\x00b", strings.Repeat("x", 5000)} {
		if _, err := s.d.Add(t.Context(), typ, s.req); !errors.Is(err, roles.ErrNoPlugin) || len(err.Error()) > 1000 {
			t.Errorf("type %.20q: error %v, want ErrNoPlugin", typ, err)
		}
	}
	// A directory, a broken link and a pipe are skipped. The link in a later directory is
	// the plugin.
	linkSelf(t, second, "x")
	for _, make := range []func(file string) error{
		func(file string) error { return os.Mkdir(file, 0o700) },
		func(file string) error { return os.Symlink("/nonexistent/x", file) },
		func(file string) error { mkfifo(t, file); return nil },
	} {
		file := filepath.Join(s.dir, "x")
		if err := make(file); err != nil {
			t.Fatal(err)
		}
		if _, err := s.d.Add(t.Context(), "x", s.req); err != nil {
			t.Error(err)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	if len(x.calls) != 3 {
		t.Fatalf("calls %v, want three", x.calls)
	}
	// The first match counts.
	script(t, s.dir, "x", `echo '{"cniVersion":"1.1.0"}'`)
	if _, err := s.d.Add(t.Context(), "x", s.req); err != nil || len(x.calls) != 3 {
		t.Errorf("error %v, calls %v: want the first file", err, x.calls)
	}
	// A link to this program under a name that is not a role's would make it call itself
	// without end.
	linkSelf(t, s.dir, "y")
	if _, err := s.d.Add(t.Context(), "y", s.req); !errors.Is(err, roles.ErrNoPlugin) {
		t.Errorf("error %v, want ErrNoPlugin", err)
	}
}

// TestDelegateWithoutPath: a missing CNI_PATH is a fault of the environment, as with the
// reference plugins.
func TestDelegateWithoutPath(t *testing.T) {
	s := newSetting(t)
	s.req.Path = nil
	_, err := s.d.Add(t.Context(), "host-local", s.req)
	o := newErrorObject("1.1.0", "bridge", roles.Add, err)
	if o.Code != codeEnv || !strings.Contains(o.Msg, "[CNI_PATH] missing") || !strings.Contains(o.Msg, `"host-local"`) || !changedNothing(err) {
		t.Errorf("error object %+v of %v, want code 4 and CNI_PATH", o, err)
	}
}

// TestDelegateAfterUpgrade: the link leads to another file than the running one. The
// file is executed, because it may have another version.
func TestDelegateAfterUpgrade(t *testing.T) {
	x := &actor{name: "x"}
	s := newSetting(t, x)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(s.dir, "cnibox")
	if err := os.Link(self, binary); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("cnibox", filepath.Join(s.dir, "x")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.d.Add(t.Context(), "x", s.req); err != nil || len(x.calls) != 1 {
		t.Fatalf("error %v, calls %v: want a call in process", err, x.calls)
	}
	script(t, s.dir, "new", `echo '{"cniVersion":"1.1.0","ips":[{"address":"10.7.7.7/24"}]}'`)
	if err := os.Rename(filepath.Join(s.dir, "new"), binary); err != nil {
		t.Fatal(err)
	}
	res, err := s.d.Add(t.Context(), "x", s.req)
	if err != nil || len(x.calls) != 1 || res.IPs[0].Address.String() != "10.7.7.7/24" {
		t.Errorf("%v, error %v, calls %v: want the new file executed", res, err, x.calls)
	}
}

func TestDelegateVersions(t *testing.T) {
	x := &actor{name: "x"}
	s := newSetting(t, x)
	linkSelf(t, s.dir, "x")
	s.req.CNIVersion = "0.3.1"
	for verb, err := range map[string]error{
		"CHECK": s.d.Check(t.Context(), "x", s.req), "GC": s.d.GC(t.Context(), "x", s.req), "STATUS": s.d.Status(t.Context(), "x", s.req),
	} {
		if !errors.Is(err, roles.ErrVersion) {
			t.Errorf("%s with 0.3.1: %v, want ErrVersion", verb, err)
		}
	}
	s.req.CNIVersion, s.req.Valid = "1.1.0", nil
	if err := s.d.GC(t.Context(), "x", s.req); err != nil || len(x.calls) != 0 {
		t.Errorf("GC without a list: error %v, calls %v", err, x.calls)
	}
}
