package docs

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops"
)

// distributions are the kernels that current distributions boot first.
func distributions() [][2]string {
	return [][2]string{
		{"Debian 11", "5.10"},
		{"RHEL 9, OpenShift before 4.22", "5.14"},
		{"Ubuntu 22.04, AKS up to Kubernetes 1.34", "5.15"},
		{"Debian 12, Amazon Linux 2023", "6.1"},
		{"Ubuntu 24.04", "6.8"},
		{"Debian 13, RHEL 10", "6.12"},
	}
}

// TestKernels: the tables of docs/kernels.md follow from the list of features in the code.
func TestKernels(t *testing.T) {
	rewrite(t, repository+"/docs/kernels.md", func(page string) string {
		var features, releases strings.Builder
		features.WriteString("| feature | option | used by | without it |\n|---|---|---|---|\n")
		for _, f := range netops.Features() {
			option := f.Option
			if f.Since != "" {
				option = strings.TrimPrefix(option+", Linux "+f.Since, ", ")
			}
			fmt.Fprintf(&features, "| `%s` | %s | %s | %s |\n", f.Name, option, f.Use, f.Without)
		}
		releases.WriteString("| distribution | Linux | substituted features |\n|---|---|---|\n")
		for _, d := range distributions() {
			var without []string
			for _, f := range netops.Features() {
				if older(d[1], f.Since) {
					without = append(without, "`"+f.Name+"`")
				}
			}
			fmt.Fprintf(&releases, "| %s | %s | %s |\n", d[0], d[1], strings.Join(without, ", "))
		}
		for name, table := range map[string]string{"features": features.String(), "distributions": releases.String()} {
			begin, end := "<!-- "+name+":start -->\n", "<!-- "+name+":end -->"
			before, rest, found := strings.Cut(page, begin)
			_, after, ended := strings.Cut(rest, end)
			if !found || !ended {
				t.Fatalf("no table between %q and %q", begin, end)
			}
			page = before + begin + table + end + after
		}
		return page
	})
}

// older compares versions of two numbers. No version is older than an empty one.
func older(a, b string) bool {
	numbers := func(v string) (n []int) {
		for part := range strings.SplitSeq(v, ".") {
			i, _ := strconv.Atoi(part)
			n = append(n, i)
		}
		return n
	}
	return slices.Compare(numbers(a), numbers(b)) < 0
}
