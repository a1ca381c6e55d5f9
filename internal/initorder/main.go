// Command initorder has a linked program do first what a plugin's call needs, and leave out what it does not: the packages named
// on standard input are initialized first, and the runtime does not look for the CPU quota of its cgroup.
//
//	go list -deps ./internal/entry | initorder SYMBOLS PROGRAM
//
// SYMBOLS is the same program linked with its symbol table, PROGRAM the one without, which is changed.
//
// Go initializes, of the packages whose imports are initialized, the first by path. A plugin's call is answered while package entry
// is initialized, and would initialize most of crypto, compress and encoding/xml before: "c" and "e" come before "github.com", and
// "net", which entry needs, waits for "vendor/…". That is a fifth of a start. What packages rely on is that all they import comes
// before them (https://go.dev/ref/spec#Package_initialization), and so it does here: the named packages are with all that they
// import, and neither they nor the others change their order among themselves.
//
// A program that it has not seen does the same, later. See unasked for the quota.
package main

import (
	"bufio"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strings"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: go list -deps PACKAGE | initorder SYMBOLS PROGRAM")
		os.Exit(2)
	}
	if err := reorder(os.Args[1], os.Args[2], os.Stdin); err != nil {
		fmt.Fprintf(os.Stderr, "initorder: %v\n", err)
		os.Exit(1)
	}
}

// reorder puts the packages of a list first in the initialization of a program.
func reorder(symbols, program string, list io.Reader) error {
	first := map[string]bool{}
	lines := bufio.NewScanner(list)
	for lines.Scan() {
		first[lines.Text()] = true
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read the list of packages: %w", err)
	}
	if len(first) == 0 {
		return errors.New("read the list of packages: it is empty")
	}
	t, err := readTable(symbols)
	if err != nil {
		return fmt.Errorf("read the symbols of %s: %w", symbols, err)
	}
	content, err := os.ReadFile(program)
	if err != nil {
		return fmt.Errorf("read the program: %w", err)
	}
	was := slices.Clone(content)
	if err := errors.Join(t.place(content, first), t.leaveOut(content)); err != nil {
		return fmt.Errorf("change %s: %w", program, err)
	}
	if bytes.Equal(content, was) {
		return nil
	}
	return replace(program, content)
}

// table is the linker's list of what is to be initialized, in its order.
type table struct {
	symbol
	tasks   map[uint64]string // the package of each task, by the task's address
	unasked symbol            // the function
}

// symbol is where something is in a program's memory.
type symbol struct{ at, size uint64 }

// tableSymbol and taskSuffix are the linker's names: cmd/link/internal/ld/inittask.go.
const (
	tableSymbol = "go:main.inittasks"
	taskSuffix  = "..inittask"
)

func readTable(path string) (*table, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read
	all, err := f.Symbols()
	if err != nil {
		return nil, err
	}
	t := &table{tasks: map[uint64]string{}}
	for _, s := range all {
		if s.Name == tableSymbol {
			t.symbol = symbol{s.Value, s.Size}
		}
		if s.Name == unasked {
			t.unasked = symbol{s.Value, s.Size}
		}
		if name, ok := strings.CutSuffix(s.Name, taskSuffix); ok {
			// Dots of the last part of a path are escaped.
			if t.tasks[s.Value], err = url.PathUnescape(name); err != nil {
				return nil, err
			}
		}
	}
	if t.size == 0 {
		return nil, fmt.Errorf("there is no %s", tableSymbol)
	}
	return t, nil
}

// place changes the order in a program's content. It is an error when the content's
// table is not the one of the symbols: they are of different programs then.
func (t *table) place(content []byte, first map[string]bool) error {
	b, err := t.in(content)
	if err != nil {
		return fmt.Errorf("find its table: %w", err)
	}
	order := make([]uint64, 0, len(b)/8)
	for at := 0; at+8 <= len(b); at += 8 {
		task := binary.LittleEndian.Uint64(b[at:])
		if _, ok := t.tasks[task]; !ok {
			return fmt.Errorf("its table has %#x, which is no package of the symbols'", task)
		}
		order = append(order, task)
	}
	slices.SortStableFunc(order, func(x, y uint64) int {
		switch a, b := first[t.tasks[x]], first[t.tasks[y]]; {
		case a == b:
			return 0
		case a:
			return -1
		}
		return 1
	})
	for i, task := range order {
		binary.LittleEndian.PutUint64(b[8*i:], task)
	}
	return nil
}

// in is the part of a program's content that holds a symbol.
func (s symbol) in(content []byte) ([]byte, error) {
	f, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	if f.Class != elf.ELFCLASS64 || f.ByteOrder != binary.LittleEndian || f.Type != elf.ET_EXEC {
		return nil, errors.New("it is no static program of a little-endian machine of 64 bits")
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD && p.Vaddr <= s.at && s.at+s.size <= p.Vaddr+p.Filesz {
			from := p.Off + s.at - p.Vaddr
			return content[from : from+s.size], nil
		}
	}
	return nil, fmt.Errorf("no segment has the address %#x", s.at)
}

// replace puts a program in the place of another, which may be running.
func replace(path string, content []byte) error {
	temp := path + ".new"
	err := os.WriteFile(temp, content, 0o755) //nolint:gosec // a program
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		_ = os.Remove(temp)
		return fmt.Errorf("write the program: %w", err)
	}
	return nil
}
