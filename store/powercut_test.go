package store_test

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/store"
)

// envPowerCut has the state directory of the process that TestPowerCut records.
const envPowerCut = "CNIBOX_TEST_POWERCUT"

// cuts is how many power cuts TestPowerCut tries. CNIBOX_CUTS gives another number: 5000 in a soak.
const cuts = 1000

const (
	// answers is the number of transactions of the recorded process. At bulk it writes so much that the file is compacted afterwards.
	answers = 80
	bulk    = 40
	// sector is what a disk writes as a whole.
	sector = 512
)

// keepState returns the marks after n transactions.
func keepState(n int) map[string]string {
	state := map[string]string{}
	for i := 1; i <= n; i++ {
		name := fmt.Sprint("m", i*7%23)
		switch {
		case i == bulk:
			state["bulk"] = strings.Repeat("b", 5<<20)
		case i == bulk+1:
			delete(state, "bulk")
		case i%5 == 0:
			delete(state, name)
		default:
			state[name] = fmt.Sprint(i, strings.Repeat("x", i*977%9000))
		}
	}
	return state
}

// TestPowerCutChild is the process that TestPowerCut records. It answers each transaction after its end.
func TestPowerCutChild(t *testing.T) {
	dir := os.Getenv(envPowerCut)
	if dir == "" {
		t.Skip("started by TestPowerCut only")
	}
	s := store.New(powerCutOptions(dir))
	for n := 1; n <= answers; n++ {
		before, after := keepState(n-1), keepState(n)
		err := s.KeepUpdate(context.Background(), func(tx *store.KeepTx) error {
			for name := range before {
				if _, stays := after[name]; !stays {
					return tx.Unmark("cut", name)
				}
			}
			for name, value := range after {
				if before[name] != value {
					return tx.Mark("cut", name, json.RawMessage(strconv.Quote(value)))
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(os.Stderr, "answer %d\n", n)
	}
}

func powerCutOptions(dir string) store.Options {
	return store.Options{RunDir: filepath.Join(dir, "run"), StateDir: filepath.Join(dir, "state"), BootID: bootA, Role: "test", Program: "v1"}
}

// written is one change of a file, of the directory, or an answer.
type written struct {
	call, file, to string
	at, size       int64
	data           []byte
	answer         int
	// made is the file that openat made.
	made *inode
}

var (
	straceLine = regexp.MustCompile(`^(?:\d+ +)?(\w+)\((.*)\) += (\d+)`)
	straceFile = regexp.MustCompile(`^\d+<([^>]*)>`)
	straceText = regexp.MustCompile(`"((?:\\x[0-9a-f]{2})*)"`)
)

// record runs the child under strace and returns what it wrote below its state directory, in order.
func record(t *testing.T) (log []written, state string) {
	t.Helper()
	dir := t.TempDir()
	state = filepath.Join(dir, "state")
	out := filepath.Join(dir, "strace")
	cmd := exec.CommandContext(t.Context(), "strace", "-f", "-y", "-xx", "-s", strconv.Itoa(32<<20), "-o", out,
		"-e", "trace=openat,write,pwrite64,ftruncate,fsync,fdatasync,renameat,renameat2,unlinkat", os.Args[0], "-test.run", "^TestPowerCutChild$")
	cmd.Env = append(os.Environ(), envPowerCut+"="+dir, "GOMAXPROCS=1")
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	f, err := os.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // it was only read
	lines := bufio.NewReaderSize(f, 1<<20)
	pending := map[string]string{} // the first halves of calls that other threads interrupted
	for {
		line, err := lines.ReadString('\n')
		if line == "" || err != nil {
			return log, state
		}
		line = strings.TrimSpace(line)
		pid, rest, _ := strings.Cut(line, " ")
		if head, is := strings.CutSuffix(line, " <unfinished ...>"); is {
			pending[pid] = head
			continue
		}
		if _, tail, is := strings.Cut(rest, " resumed>"); is {
			line = pending[pid] + tail
		}
		if w, is := parseWritten(t, line, state); is {
			log = append(log, w)
		}
	}
}

func unhex(t *testing.T, text string) string {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(text, `\x`, ""))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// parseWritten parses a line of strace -y -xx. It returns false for what changes nothing of the state directory.
func parseWritten(t *testing.T, line, state string) (w written, is bool) {
	t.Helper()
	m := straceLine.FindStringSubmatch(line)
	if m == nil {
		return w, false
	}
	var texts []string
	for _, text := range straceText.FindAllStringSubmatch(m[2], -1) {
		texts = append(texts, unhex(t, text[1]))
	}
	path := ""
	if fd := straceFile.FindStringSubmatch(m[2]); fd != nil {
		path = fd[1]
		if strings.HasPrefix(path, `\x`) {
			path = unhex(t, path)
		}
	}
	numbers := strings.Split(m[2], ", ")
	last := func(i int) int64 {
		n, err := strconv.ParseInt(numbers[len(numbers)-i], 10, 64)
		if err != nil {
			t.Fatalf("%.200s: %v", line, err)
		}
		return n
	}
	w.call, w.file = m[1], filepath.Base(path)
	switch w.call {
	case "write":
		answer, is := "", false
		if len(texts) == 1 {
			answer, is = strings.CutPrefix(texts[0], "answer ")
		}
		if !is {
			return w, false
		}
		w.answer, _ = strconv.Atoi(strings.TrimSpace(answer))
		return w, w.answer > 0
	case "pwrite64":
		w.data, w.at = []byte(texts[0]), last(1)
	case "ftruncate":
		w.size = last(1)
	case "openat":
		if !strings.Contains(m[2], "O_CREAT") || len(texts) == 0 {
			return w, false
		}
		w.file = filepath.Base(texts[0])
		return w, path == state || filepath.Dir(texts[0]) == state
	case "renameat", "renameat2":
		w.file, w.to = texts[0], texts[1]
		return w, path == state
	case "unlinkat":
		w.file = texts[0]
		return w, path == state
	case "fsync", "fdatasync":
		return w, path == state || filepath.Dir(path) == state
	}
	return w, filepath.Dir(path) == state
}

// inode is a file on the disk: what it surely has, and the changes since the last sync, of which a power cut may lose any.
type inode struct {
	synced  []byte
	pending []written
}

// recordedDisk is a directory of which a power cut may lose the last changes, in order, as on a file system with a journal.
type recordedDisk struct {
	names, synced map[string]*inode
	pending       []written
}

func (d *recordedDisk) apply(t *testing.T, w written) {
	t.Helper()
	switch w.call {
	case "openat":
		if d.names[w.file] == nil {
			w.made = &inode{}
			d.names[w.file] = w.made
			d.pending = append(d.pending, w)
		}
	case "renameat", "renameat2":
		d.names[w.to] = d.names[w.file]
		delete(d.names, w.file)
		d.pending = append(d.pending, w)
	case "unlinkat":
		delete(d.names, w.file)
		d.pending = append(d.pending, w)
	case "pwrite64", "ftruncate":
		f := d.names[w.file]
		if f == nil {
			t.Fatalf("%s of %q, whose creation was not recorded", w.call, w.file)
		}
		f.pending = append(f.pending, w)
	case "fsync", "fdatasync":
		if f := d.names[w.file]; f != nil {
			for _, p := range f.pending {
				f.synced = applied(f.synced, p, nil)
			}
			f.pending = nil
			return
		}
		d.synced, d.pending = maps.Clone(d.names), nil // the directory
	}
}

// applied returns a file after a change. With rnd a write loses some of its sectors.
func applied(b []byte, w written, rnd *rand.Rand) []byte {
	if w.call == "ftruncate" {
		if int64(len(b)) >= w.size {
			return b[:w.size]
		}
		return append(b, make([]byte, w.size-int64(len(b)))...)
	}
	if end := w.at + int64(len(w.data)); int64(len(b)) < end {
		b = append(b, make([]byte, end-int64(len(b)))...)
	}
	torn := rnd != nil && rnd.IntN(3) == 0
	for at := 0; at < len(w.data); at += sector {
		if !torn || rnd.IntN(2) == 0 {
			copy(b[w.at+int64(at):], w.data[at:min(at+sector, len(w.data))])
		}
	}
	return b
}

// cut returns the files that a power cut leaves.
func (d *recordedDisk) cut(rnd *rand.Rand) map[string][]byte {
	names := maps.Clone(d.synced)
	for _, w := range d.pending[:rnd.IntN(len(d.pending)+1)] {
		switch w.call {
		case "openat":
			names[w.file] = w.made
		case "unlinkat":
			delete(names, w.file)
		default:
			names[w.to] = names[w.file]
			delete(names, w.file)
		}
	}
	files := map[string][]byte{}
	for name, f := range names {
		b := slices.Clone(f.synced)
		kept := slices.DeleteFunc(slices.Clone(f.pending), func(written) bool { return rnd.IntN(2) == 0 })
		rnd.Shuffle(len(kept), func(i, j int) { kept[i], kept[j] = kept[j], kept[i] })
		for _, w := range kept {
			b = applied(b, w, rnd)
		}
		files[name] = b
	}
	return files
}

// TestPowerCut records each write, rename and sync of a process with transactions on keep.db, cuts the power at random places, and opens
// what is then on a disk that lost any writes since the last sync, wrote them in any order, and wrote some in part. Whatever was
// answered is there, and of the transaction in progress all or nothing.
func TestPowerCut(t *testing.T) {
	n := cuts
	if s := os.Getenv("CNIBOX_CUTS"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	log, _ := record(t)
	places := make([]int, n)
	seeds := rand.New(rand.NewPCG(1, 1))
	for i := range places {
		places[i] = seeds.IntN(len(log) + 1)
	}
	slices.Sort(places)
	d, answered, next, compacted := &recordedDisk{names: map[string]*inode{}, synced: map[string]*inode{}}, 0, 0, 0
	for i, place := range places {
		for ; next < place; next++ {
			w := log[next]
			if w.answer > 0 {
				answered = w.answer
				continue
			}
			if w.call == "renameat" && w.to == "keep.db" {
				compacted++
			}
			d.apply(t, w)
		}
		checkCut(t, d.cut(rand.New(rand.NewPCG(uint64(i), 2))), i, place, answered)
	}
	if answered != answers || compacted < 2 {
		t.Errorf("%d transactions were recorded, and keep.db was made or compacted %d times", answered, compacted)
	}
	t.Logf("%d cuts in %d calls", n, len(log))
}

// checkCut opens the files and compares the marks with those of the answered transactions.
func checkCut(t *testing.T, files map[string][]byte, seed, place, answered int) {
	t.Helper()
	o := powerCutOptions(t.TempDir())
	if err := os.MkdirAll(o.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, b := range files {
		if err := os.WriteFile(filepath.Join(o.StateDir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var have map[string]string
	// A write, since a process that must not lose anything begins with one.
	err := store.New(o).KeepUpdate(t.Context(), func(tx *store.KeepTx) error {
		var err error
		have, err = readMarks(tx)
		return errors.Join(err, errRollBack)
	})
	if !errors.Is(err, errRollBack) || !maps.Equal(have, keepState(answered)) && !maps.Equal(have, keepState(answered+1)) {
		t.Fatalf("cut %d at call %d, %d transactions were answered: %v; the state is that of %d", seed, place, answered, err, stateOf(have))
	}
}

func readMarks(tx *store.KeepTx) (map[string]string, error) {
	marks := map[string]string{}
	names := []string{"bulk"}
	for i := range 23 {
		names = append(names, fmt.Sprint("m", i))
	}
	for _, name := range names {
		raw, marked, err := tx.Marked("cut", name)
		if err != nil {
			return nil, err
		}
		if marked {
			var value string
			if err := json.Unmarshal(raw, &value); err != nil {
				return nil, err
			}
			marks[name] = value
		}
	}
	return marks, nil
}

// stateOf returns after how many transactions the marks are these, or -1.
func stateOf(have map[string]string) int {
	for n := range answers + 1 {
		if maps.Equal(have, keepState(n)) {
			return n
		}
	}
	return -1
}
