package diff

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
)

// intended is an intended difference with its reason. docs/differences.md is generated from these.
type intended struct {
	title     string
	reference string // what the reference plugins do
	ours      string // what cnibox does
	why       string
	seen      []pattern
}

// pattern selects differences. A star matches any text, a question mark one byte; "-" is a fact that one side lacks. If both values
// are empty, they match all.
type pattern struct {
	cases           string // several are separated by spaces
	fact            string
	reference, ours string
	// release is the one of the reference that differs, if not each does.
	release string
	// chance means that random numbers, or the machine, decide whether it is observed.
	chance bool
}

func (p pattern) String() string {
	return fmt.Sprintf("cases %q, fact %q, reference %q, cnibox %q", p.cases, p.fact, p.reference, p.ours)
}

// selects reports whether the pattern is for a case.
func (p pattern) selects(name string) bool {
	return slices.ContainsFunc(strings.Fields(p.cases), func(glob string) bool { return matches(glob, name) })
}

// covers reports whether a difference matches the pattern.
func (p pattern) covers(d difference) bool {
	if !matches(p.fact, d.fact) {
		return false
	}
	return p.reference == "" && p.ours == "" || matches(p.reference, d.reference) && matches(p.ours, d.ours)
}

// matches reports whether text matches a glob in which only star and question mark are special.
func matches(glob, text string) bool {
	if glob == "" {
		return text == ""
	}
	switch {
	case glob[0] == '*':
		return matches(glob[1:], text) || text != "" && matches(glob, text[1:])
	case text == "":
		return false
	}
	return (glob[0] == '?' || glob[0] == text[0]) && matches(glob[1:], text[1:])
}

// ledger compares the intended differences with those that are observed.
type ledger struct {
	list []intended

	mu       sync.Mutex
	hits     [][]int // by entry and pattern
	statuses map[string]status
	facts    int
}

// newLedger returns the ledger of the reference's release.
func newLedger(list []intended, release string) *ledger {
	l := &ledger{list: list, statuses: map[string]status{}}
	for i := range list {
		e := &list[i]
		e.seen = slices.DeleteFunc(e.seen, func(p pattern) bool { return p.release != "" && p.release != release })
		l.hits = append(l.hits, make([]int, len(e.seen)))
	}
	return l
}

func (l *ledger) mark(name string, s status) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.statuses[name] = s
}

func (l *ledger) count(a, b int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.facts += max(a, b)
}

// intended reports whether a difference is in the list.
func (l *ledger) intended(name string, d difference) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	found := false
	for i, e := range l.list {
		for j, p := range e.seen {
			if p.selects(name) && p.covers(d) {
				l.hits[i][j]++
				found = true
			}
		}
	}
	return found
}

// judge fails for patterns that nothing matched, and prints the table. A pattern is judged when each of its cases was started and
// one of them ran: the others need a run without -run, or another kernel.
func (l *ledger) judge(t *testing.T, cases []testCase) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	var table strings.Builder
	for i, e := range l.list {
		sum := 0
		for j, p := range e.seen {
			sum += l.hits[i][j]
			if l.hits[i][j] == 0 && l.judged(p, cases) {
				t.Errorf("intended difference %q: nothing matches %v", e.title, p)
			}
		}
		fmt.Fprintf(&table, "%6d  %s\n", sum, e.title)
	}
	runs := 0
	for _, s := range l.statuses {
		if s == ran {
			runs++
		}
	}
	t.Logf("%d of %d cases, %d facts compared; intended differences:\n%s", runs, len(cases), l.facts, table.String())
}

func (l *ledger) judged(p pattern, cases []testCase) bool {
	if p.chance {
		return false
	}
	selected, runs := 0, 0
	for _, c := range cases {
		if !p.selects(c.name) {
			continue
		}
		selected++
		switch l.statuses[c.name] {
		case notStarted:
			return false
		case ran:
			runs++
		}
	}
	return selected == 0 || runs > 0
}
