// Package nftlist lists nftables by the versions of nft in Debian's releases.
package nftlist

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// Programs are nft 0.9.8 (bullseye), this machine's and 1.1 (trixie), each as the words of a command.
type Programs [][]string

// Find returns the programs. It skips the test if they were not fetched.
func Find(t *testing.T) Programs {
	t.Helper()
	dir, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	for dir != "/" && !exists(filepath.Join(dir, "go.mod")) {
		dir = filepath.Dir(dir)
	}
	all := Programs{{"nft"}}
	for _, release := range []string{"bullseye", "trixie"} {
		root := filepath.Join(dir, "bin/nft", release)
		libraries := filepath.Join(root, "lib/x86_64-linux-gnu") + ":" + filepath.Join(root, "usr/lib/x86_64-linux-gnu")
		i := slices.IndexFunc(filepath.SplitList(libraries), func(d string) bool { return exists(filepath.Join(d, loader)) })
		if i < 0 {
			t.Skipf("nft of %s is absent: run make bin/nft/%[1]s", release)
		}
		all = append(all, []string{filepath.Join(filepath.SplitList(libraries)[i], loader), "--library-path", libraries, filepath.Join(root, "usr/sbin/nft")})
	}
	return all
}

const loader = "ld-linux-x86-64.so.2"

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Check lists the namespace's nftables by each program, with and without -j. It fails if a program fails or prints bytes that are
// not text, or if they list different elements.
func (all Programs) Check() error {
	elements := ""
	for _, nft := range all {
		text, err := output(nft, "list", "ruleset")
		if err != nil {
			return err
		}
		if !utf8.Valid(text) {
			return fmt.Errorf("%s lists bytes that are not text:\n%q", nft, text)
		}
		data, err := output(nft, "-j", "list", "ruleset")
		if err != nil {
			return err
		}
		have, err := elementsOf(data)
		if err != nil {
			return fmt.Errorf("%s -j: %w\n%s", nft, err, data)
		}
		if elements == "" {
			elements = have
		}
		if have != elements || have == "" {
			return fmt.Errorf("%s lists the elements:\n%s\n%s lists:\n%s", nft, have, all[0], elements)
		}
	}
	return nil
}

// Reload saves the namespace's nftables by each program, as /etc/nftables.conf has them, flushes them and loads the file by the same
// program. It fails if a program does not load its own file, if it lists another ruleset afterwards, or if check fails then.
func (all Programs) Reload(check func() error) error {
	for _, nft := range all {
		saved, err := output(nft, "list", "ruleset")
		if err != nil {
			return err
		}
		if err := load(nft, append([]byte("flush ruleset\n"), saved...)); err != nil {
			return fmt.Errorf("%w\nof the ruleset that it listed:\n%s", err, saved)
		}
		loaded, err := output(nft, "list", "ruleset")
		if err != nil {
			return err
		}
		if !bytes.Equal(loaded, saved) {
			return fmt.Errorf("%s listed:\n%s\nand after it loaded that:\n%s", nft, saved, loaded)
		}
		if err := check(); err != nil {
			return fmt.Errorf("after %s loaded what it listed: %w", nft, err)
		}
	}
	return nil
}

func load(nft []string, file []byte) error {
	cmd := exec.Command(nft[0], slices.Concat(nft[1:], []string{"-f", "-"})...)
	cmd.Stdin = bytes.NewReader(file)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	return nil
}

func output(nft []string, args ...string) ([]byte, error) {
	cmd := exec.Command(nft[0], slices.Concat(nft[1:], args)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", cmd, err, &stderr)
	}
	return out, nil
}

// prefix is a network among elements. nft 0.9.8 lists the last network of a family as a range.
var prefix = regexp.MustCompile(`\{"prefix": \{"addr": "([^"]+)", "len": (\d+)\}\}`)

func asRange(text string) string {
	parts := prefix.FindStringSubmatch(text)
	p, err := netip.ParsePrefix(parts[1] + "/" + parts[2])
	if err != nil {
		return text
	}
	last := p.Addr().AsSlice()
	for i := p.Bits(); i < 8*len(last); i++ {
		last[i/8] |= 0x80 >> (i % 8)
	}
	end, _ := netip.AddrFromSlice(last)
	return fmt.Sprintf(`{"range": [%q, %q]}`, p.Addr(), end)
}

// elementsOf returns the sets and maps with their elements, one a line.
func elementsOf(data []byte) (string, error) {
	var list struct {
		Nftables []map[string]struct {
			Name string
			Elem json.RawMessage
		}
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return "", err
	}
	var b strings.Builder
	for _, o := range list.Nftables {
		for _, kind := range []string{"set", "map"} {
			if s, ok := o[kind]; ok {
				fmt.Fprintf(&b, "%s %s %s\n", kind, s.Name, prefix.ReplaceAllStringFunc(string(s.Elem), asRange))
			}
		}
	}
	return b.String(), nil
}
