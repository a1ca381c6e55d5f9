package hostlocal

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/cnibox/cnibox/roles/call/leasefiles"
)

func TestExportVerb(t *testing.T) {
	b := newBed(t)
	a := b.handlerFor(t, `{"subnet": "10.1.2.0/24"}`)
	b.add(t, a, request1("one"))
	role := Role()
	if len(role.Verbs()) == 0 || role.Verbs()[0].Name != "state export" {
		t.Fatalf("verbs %+v", role.Verbs())
	}
	run := role.Verbs()[0].Run
	if _, err := run(context.Background(), b.Host, nil, []string{"a", "b"}); err == nil {
		t.Error("two directories: no error")
	}
	dir := filepath.Join(b.dir, "out")
	report, err := run(context.Background(), b.Host, nil, []string{dir})
	if err != nil {
		t.Fatal(err)
	}
	if r, ok := report.(*leasefiles.ExportReport); !ok || r.Networks[0].Written != 1 {
		t.Errorf("report %+v", report)
	}
	got, err := os.ReadFile(filepath.Join(dir, "net", "10.1.2.2"))
	if err != nil || string(got) != "one\r\neth0" {
		t.Errorf("%q, %v", got, err)
	}
	report, err = run(context.Background(), b.Host, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r, ok := report.(*leasefiles.ExportReport); !ok || r.Networks[0].Dir != filepath.Join(a.ID("net").DataDir, "net") {
		t.Errorf("without a directory: report %+v", report)
	}
}
