package ranges

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles/call/leasing"
	"github.com/cnibox/cnibox/store/cluster"
)

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

// spans parses intervals such as "10.1.0.1-10.1.0.9".
func spans(texts ...string) (out []leasing.Interval) {
	for _, t := range texts {
		lo, hi, _ := strings.Cut(t, "-")
		out = append(out, leasing.Interval{Lo: ip(lo), Hi: ip(hi)})
	}
	return out
}

// TestPagesOf: the pages of ranges, also of ranges that end with the address space and of huge ones.
func TestPagesOf(t *testing.T) {
	for _, c := range []struct {
		of    []leasing.Interval
		first string
		last  string
		n     int
	}{
		{spans("10.1.0.1-10.1.0.254"), "10.1.0.0", "10.1.0.0", 1},
		{spans("192.168.2.225-192.168.2.238"), "192.168.2.0", "192.168.2.0", 1},
		{spans("10.1.0.250-10.1.1.5"), "10.1.0.0", "10.1.1.0", 2},
		{spans("10.1.0.1-10.1.0.5", "10.1.0.9-10.1.0.20", "10.1.3.0-10.1.3.1"), "10.1.0.0", "10.1.3.0", 2},
		{spans("255.255.254.0-255.255.255.255"), "255.255.254.0", "255.255.255.0", 2},
		{spans("10.0.0.1-10.255.255.254"), "10.0.0.0", "10.255.255.0", maxPages},
		{spans("fd00::1-fd00::ffff"), "fd00::", "fd00::ff00", 256},
		{spans("fd00::1-fd00::ffff:ffff:ffff:ffff"), "fd00::", "fd00::ff:ff00", maxPages},
		{spans("ffff:ffff:ffff:ffff:ffff:ffff:ffff:fe00-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"), "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fe00", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ff00", 2},
	} {
		got := pagesOf(c.of)
		if len(got) != c.n || got[0] != ip(c.first) || got[len(got)-1] != ip(c.last) {
			t.Errorf("%v: %d pages from %s to %s", c.of, len(got), got[0], got[len(got)-1])
		}
	}
}

// TestFree: a page's free addresses are those of the range that no node has.
func TestFree(t *testing.T) {
	p := &page{First: ip("10.1.0.0"), Blocks: []block{{First: ip("10.1.0.4"), Last: ip("10.1.0.7")}, {First: ip("10.1.0.8"), Last: ip("10.1.0.8")}}}
	for _, c := range []struct{ of, want []leasing.Interval }{
		{spans("10.1.0.1-10.1.0.10"), spans("10.1.0.1-10.1.0.3", "10.1.0.9-10.1.0.10")},
		{spans("10.1.0.5-10.1.0.8"), nil},
		{spans("10.0.0.1-10.1.0.2", "10.1.0.200-10.2.0.0"), spans("10.1.0.0-10.1.0.2", "10.1.0.200-10.1.0.255")},
		{spans("10.2.0.0-10.2.0.9", "fd00::1-fd00::9"), nil},
	} {
		if got := p.free(c.of); !slices.Equal(got, c.want) {
			t.Errorf("%v: %v, want %v", c.of, got, c.want)
		}
	}
}

// TestBlockSize: many nodes fit into a small range, and a node that uses much of a large one takes more.
func TestBlockSize(t *testing.T) {
	for _, c := range []struct {
		size uint64
		used int
		want int
	}{
		{1, 0, 1},
		{14, 0, 1},
		{14, 10, 1},
		{254, 0, 2},
		{254, 20, 8},
		{254, 200, 8},
		{1022, 0, 8},
		{65534, 0, 16},
		{65534, 40, 16},
		{65534, 100, 32},
		{65534, 1000, 64},
		{1<<64 - 1, 0, 16},
		{1<<64 - 1, 1 << 20, 64},
	} {
		if got := blockSize(c.size, c.used); got != c.want {
			t.Errorf("range of %d, %d used: %d, want %d", c.size, c.used, got, c.want)
		}
	}
}

// TestDecodePage: a page with a hostile or damaged content is refused, and what encode writes is accepted.
func TestDecodePage(t *testing.T) {
	good := &page{Pool: "lan", First: ip("fd00::100")}
	good.add(block{First: ip("fd00::1ff"), Last: ip("fd00::1ff"), Node: "b"})
	good.add(block{First: ip("fd00::101"), Last: ip("fd00::110"), Node: "a"})
	raw, err := good.encode()
	if err != nil {
		t.Fatal(err)
	}
	if p, err := decodePage(good.name(), raw); err != nil || len(p.Blocks) != 2 || p.Blocks[0].Node != "a" {
		t.Errorf("%s: %+v, %v", raw, p, err)
	}
	const name = "10-1-0-0"
	block := func(first, last, node string) string {
		return fmt.Sprintf(`{"first":"10.1.0.0","blocks":[{"first":%q,"last":%q,"node":%q}]}`, first, last, node)
	}
	if _, err := decodePage(name, []byte(block("10.1.0.0", "10.1.0.255", "a"))); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{
		"", "null", "[]", "{}", `{"first":"10.1.1.0"}`, `{"first":"10.1.0.1"}`, `{"pool":"x","first":"10.1.0.0"}`, `{"first":"::ffff:10.1.0.0"}`,
		block("10.1.0.9", "10.1.0.8", "a"), block("10.1.0.9", "10.1.1.1", "a"), block("10.2.0.9", "10.2.0.9", "a"), block("fd00::1", "fd00::1", "a"),
		block("10.1.0.1", "10.1.0.1", ""), block("10.1.0.1", "10.1.0.1", "../x"), block("", "10.1.0.1", "a"),
		`{"first":"10.1.0.0","blocks":[{"first":"10.1.0.1","last":"10.1.0.4","node":"a"},{"first":"10.1.0.4","last":"10.1.0.5","node":"b"}]}`,
		`{"first":"10.1.0.0","blocks":[` + strings.Repeat(" ", cluster.MaxPage) + `]}`,
	} {
		if p, err := decodePage(name, []byte(bad)); !errors.Is(err, cluster.ErrInvalid) {
			t.Errorf("%.100s: %+v, %v", bad, p, err)
		}
	}
	for _, bad := range []string{"fd00::1%a", "::ffff:10.1.0.1", ""} {
		raw := fmt.Sprintf(`{"first":"fd00::","blocks":[{"first":%q,"last":%q,"node":"a"}]}`, bad, bad)
		if p, err := decodePage("fd00-0000-0000-0000-0000-0000-0000-0000", []byte(raw)); !errors.Is(err, cluster.ErrInvalid) {
			t.Errorf("%s: %+v, %v", raw, p, err)
		}
	}
}

// FuzzPage: an accepted page has disjoint blocks of one page.
func FuzzPage(f *testing.F) {
	f.Add([]byte(`{"first":"10.1.0.0","blocks":[{"first":"10.1.0.1","last":"10.1.0.4","node":"a"},{"first":"10.1.0.5","last":"10.1.0.5","node":"b"}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		p, err := decodePage("10-1-0-0", raw)
		if err != nil {
			return
		}
		free := p.free(spans("10.1.0.0-10.1.0.255"))
		for i := range p.Blocks {
			if slices.ContainsFunc(free, p.Blocks[i].interval().Overlaps) || !spans("10.1.0.0-10.1.0.255")[0].Contains(p.Blocks[i].First) {
				t.Errorf("%+v", p)
			}
		}
	})
}
