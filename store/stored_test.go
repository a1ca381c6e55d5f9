package store_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/cnibox/cnibox/store"
)

// TestStoredState: testdata/stored has the state that each release left on a node with containers of many networks, and what it exported. It
// begins with the first release: until then v0 is what the present format is, and changes with it. This version reads the same of it. The
// records that it writes for that are the same bytes, so the release reads them.
func TestStoredState(t *testing.T) {
	dirs, err := filepath.Glob("testdata/stored/*")
	if err != nil || len(dirs) == 0 {
		t.Fatal(dirs, err)
	}
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			s, again := store.New(options(t)), store.New(options(t))
			keep := filepath.Join(s.StateDir(), "keep.db")
			unpack(t, filepath.Join(dir, "node.db.gz"), s.Path())
			unpack(t, filepath.Join(dir, "keep.db.gz"), keep)
			before := records(t, s.Path())
			d, err := store.Read(t.Context(), s, (*store.Tx).Export)
			if err == nil {
				d.Delegations, err = store.ReadKeep(t.Context(), s, func(tx *store.KeepTx) ([]store.Delegation, error) { return tx.Delegations("") })
			}
			if err == nil {
				_, err = store.ReadKeep(t.Context(), s, func(tx *store.KeepTx) (struct{}, error) { return struct{}{}, tx.Sound() })
			}
			if err != nil {
				t.Fatal(err)
			}
			got, err := json.MarshalIndent(d, "", " ")
			if err != nil {
				t.Fatal(err)
			}
			golden := filepath.Join(dir, "export.json")
			want, err := os.ReadFile(golden)
			if os.IsNotExist(err) { // a new release
				err = os.WriteFile(golden, got, 0o644)
				t.Errorf("wrote %s: read it", golden)
			}
			if err != nil || want != nil && !bytes.Equal(got, want) {
				t.Errorf("%v\n%s", err, got)
			}
			if err := again.Import(t.Context(), d, true); err != nil {
				t.Fatal(err)
			}
			after := records(t, again.Path())
			for _, key := range slices.Sorted(maps.Keys(before)) {
				if now, ok := after[key]; (!ok || now != before[key]) && !strings.HasSuffix(key, "/S") { // "S" has the sizes in the configuration of the last ADD
					t.Errorf("%q is %q, was %q", key, now, before[key])
				}
			}
			if len(before) < 50 {
				t.Errorf("%d records", len(before))
			}
		})
	}
}

func unpack(t *testing.T, from, to string) {
	t.Helper()
	f, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(to), 0o700)
	}
	if err == nil {
		err = os.WriteFile(to, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// records returns the values of a file by the names of their buckets and their keys, without what is derived from others.
func records(t *testing.T, path string) map[string]string {
	t.Helper()
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	all := map[string]string{}
	var read func(prefix string, b *bolt.Bucket) error
	read = func(prefix string, b *bolt.Bucket) error {
		return b.ForEach(func(k, v []byte) error {
			if v == nil {
				return read(prefix+string(k)+"/", b.Bucket(k))
			}
			all[prefix+string(k)] = string(v)
			return nil
		})
	}
	err = db.View(func(tx *bolt.Tx) error {
		return tx.ForEach(func(name []byte, b *bolt.Bucket) error {
			if strings.Contains("info derived settled", string(name)) {
				return nil
			}
			return read(string(name)+"/", b)
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
