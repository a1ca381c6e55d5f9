package nights

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/cnibox/cnibox/test/suites/nights/recording"
)

var update = flag.Bool("update", false, "write the recordings of the nights")

// record writes a recording of commands on a node, which it also runs: record FILE COMMAND…
func record(args []string) error {
	if len(args) < 2 {
		return errors.New("want FILE COMMAND…")
	}
	r, err := recording.Of(context.Background(), "/opt/cni/bin/cnibox", args[1:])
	if err != nil {
		return err
	}
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(args[0], raw, 0o600)
}

// record returns what doctor and the other commands of a night read of a node and print.
func (n *node) record(commands []txtar.File) *recording.Recording {
	n.t.Helper()
	const doctor = "cnibox doctor"
	lines := []string{doctor}
	for _, c := range commands {
		if recording.IsOf(c.Name) && c.Name != doctor {
			lines = append(lines, c.Name)
		}
	}
	n.must("record $WORK/recording '" + strings.Join(lines, "' '") + "'")
	raw, err := os.ReadFile(filepath.Join(n.work, "recording"))
	if err != nil {
		n.t.Fatal(err)
	}
	r := new(recording.Recording)
	if err := json.Unmarshal(raw, r); err != nil {
		n.t.Fatal(err)
	}
	r, err = r.Stable(n.work)
	if err != nil {
		n.t.Fatal(err)
	}
	return r
}

// goldenOf returns the file of a night.
func goldenOf(t *testing.T) string {
	t.Helper()
	return filepath.Join("testdata", "recorded", filepath.Base(t.Name())+".json")
}

// compare compares what two nodes told the recorder with the night's golden, which -update writes.
func compare(t *testing.T, have recording.Night) {
	t.Helper()
	if *update {
		if err := have.Write(goldenOf(t)); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := recording.Read(goldenOf(t))
	if err != nil {
		t.Fatalf("%v: run the night with -update", err)
	}
	found := want.Healthy.Differences(have.Healthy)
	if want.Broken != nil && have.Broken != nil {
		found = append(found, want.Broken.Differences(have.Broken)...)
	}
	for _, difference := range found {
		t.Errorf("the node is not as recorded, see -update: %s", difference)
	}
}
