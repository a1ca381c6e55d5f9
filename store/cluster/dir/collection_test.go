package dir

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/clustertest"
)

// A full comparison notices what inotify does not report, as for the changes of other machines: here a writer that does not close its file.
func TestRescan(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, configFile), `{"Network":"10.244.0.0/16"}`)
	r, err := Open(Options{Dir: dir, Name: "a", Rescan: 5 * time.Millisecond})
	must(t, err)
	c := r.Collection("texts")
	_, err = c.Write(t.Context(), "a", []byte("1"), "")
	must(t, err)
	write(t, r.path("b"), `{"publicIP":"192.0.2.1","podCIDRs":["10.244.1.0/24"]}`)
	change := func(path, text string) {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		must(t, err)
		t.Cleanup(func() { _ = f.Close() })
		_, err = f.WriteString(text)
		must(t, err)
	}
	copied := clustertest.Follow(t, c)
	copied.Equal(c)
	change(filepath.Join(dir, "texts", "a.json"), "2+")
	copied.Equal(c)
	changed := false
	first(t, r, func(u cluster.Update) bool {
		switch {
		case u.Snapshot == nil || len(u.Snapshot.Nodes) == 0:
			return false
		case !changed:
			changed = true
			change(r.path("b"), `{"publicIP":"192.0.2.2","podCIDRs":["10.244.1.0/24"]} `)
			return false
		}
		return u.Snapshot.Nodes[0].PublicIP.String() == "192.0.2.2"
	})
}

// TestOverflow: when inotify's queue overflows while a follower is slow, everything is read again.
func TestOverflow(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, configFile), `{"Network":"10.244.0.0/16"}`)
	r, err := Open(Options{Dir: dir, Name: "a", Rescan: time.Hour})
	must(t, err)
	c := r.Collection("texts")
	for _, name := range []string{"removed", "a"} {
		_, err = c.Write(t.Context(), name, []byte("1"), "")
		must(t, err)
	}
	copied := clustertest.Follow(t, c)
	copied.Equal(c)
	most, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	must(t, err)
	count, err := strconv.Atoi(strings.TrimSpace(string(most)))
	must(t, err)
	release := copied.Hold()
	write(t, filepath.Join(dir, "texts", "b.json"), "1") // the watch waits in the report of this one
	at := []string{filepath.Join(dir, "texts", ".x"), filepath.Join(dir, "texts", ".y")}
	write(t, at[0], "")
	for i := range 2 * count {
		must(t, os.Rename(at[i%2], at[1-i%2]))
	}
	must(t, errors.Join(os.Rename(at[0], filepath.Join(dir, "texts", "c.json")), os.Remove(filepath.Join(dir, "texts", "removed.json"))))
	release()
	copied.Equal(c)
}

// lacking is a collection on a file system whose lists lack a file that is being replaced.
type lacking struct {
	texts
	name *string
}

func (l lacking) list(ctx context.Context) ([]string, error) {
	names, err := l.texts.list(ctx)
	return slices.DeleteFunc(names, func(name string) bool { return name == *l.name }), err
}

// A file that a list lacks stays if it is there. One that is not is removed.
func TestLackingList(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, configFile), `{"Network":"10.244.0.0/16"}`)
	r := open(t, dir, "a")
	c := collection{r, "texts"}
	for _, name := range []string{"a", "b"} {
		_, err := c.Write(t.Context(), name, []byte("1"), "")
		must(t, err)
	}
	copied, lacks := clustertest.NewCopy(t), ""
	w := watch{r: r, to: lacking{texts{c, copied}, &lacks}, dir: "texts", limit: cluster.MaxPage}
	for _, lacks = range []string{"", "a", ""} {
		must(t, w.readAll(t.Context()))
		copied.Equal(c)
	}
	must(t, os.Remove(filepath.Join(dir, "texts", "a.json")))
	must(t, w.readAll(t.Context()))
	copied.Equal(c)
}
