package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/roles/netpolicy"
)

// keptFile is the copy of the last valid state of a file. As JSON it is invalid if it was truncated.
type keptFile struct {
	File string          `json:"file"`
	Doc  json.RawMessage `json:"doc"`
}

// keptName returns the name of the copy of a file.
func (d *Directory) keptName(name string) string {
	sum := sha256.Sum256([]byte(filepath.Join(d.Path, name)))
	return hex.EncodeToString(sum[:16]) + ".json"
}

// keep copies the valid state of a file, unless the copy is equal. Without a copy, an agent that finds the file invalid at its start does not
// know what it said before.
func (d *Directory) keep(name string, doc []byte) {
	sum := sha256.Sum256(doc)
	if d.Keep == "" || d.keptSums[name] == sum {
		return
	}
	raw, err := json.Marshal(keptFile{filepath.Join(d.Path, name), doc})
	if err == nil {
		err = os.MkdirAll(d.Keep, 0o700)
	}
	if err == nil {
		err = smallfile.Replace(filepath.Join(d.Keep, d.keptName(name)), raw, 0o600)
	}
	if err != nil {
		d.Log.Warn("the valid state of a file of network policies cannot be kept: after a restart of the agent it is not known", "file", name, "error", err)
		return
	}
	d.keptSums[name] = sum
}

func (d *Directory) dropKept(name string) {
	if d.Keep != "" {
		delete(d.keptSums, name)
		_ = os.Remove(filepath.Join(d.Keep, d.keptName(name))) // a copy of a file that is gone is not used
	}
}

// readKept reads the copies of an earlier agent.
func (d *Directory) readKept() {
	d.kept, d.keptSums = map[string]json.RawMessage{}, map[string][sha256.Size]byte{}
	entries, err := os.ReadDir(d.Keep)
	if err != nil {
		return // there are none
	}
	for _, e := range entries {
		raw, err := smallfile.ReadOwn(filepath.Join(d.Keep, e.Name()), 2*maxFile)
		var k keptFile
		if err != nil || json.Unmarshal(raw, &k) != nil || filepath.Dir(k.File) != filepath.Clean(d.Path) {
			continue
		}
		name := filepath.Base(k.File)
		d.kept[name], d.keptSums[name] = k.Doc, sha256.Sum256(k.Doc)
	}
}

// startWith puts the copy of a file in force until the file is known.
func (d *Directory) startWith(name string) {
	d.files[name] = new(file)
	if doc := d.kept[name]; doc != nil {
		if o, err := netpolicy.Decode(doc); err == nil && d.ids[o.ID] == "" {
			d.use(name, o, true)
		}
	}
}

// HasKept reports whether an earlier agent has kept valid states of the directory. Then a directory that is gone does not end the agent.
func (d *Directory) HasKept() bool {
	d.readKept()
	return len(d.kept) > 0
}

// useKept puts the copies in force while the directory cannot be read for the first time.
func (d *Directory) useKept() {
	if d.wasRead || d.MustRead || len(d.files) > 0 {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(d.kept)) {
		d.startWith(name)
	}
}

// tidyKept removes the copies of files that are gone, after the first reading.
func (d *Directory) tidyKept() {
	for name := range d.kept {
		if d.files[name] == nil {
			d.dropKept(name)
			delete(d.kept, name)
		}
	}
}
