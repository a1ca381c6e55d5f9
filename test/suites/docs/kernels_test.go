package docs

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops"
)

// TestKernels: the table of docs/kernels.md follows from the list of features in the code.
func TestKernels(t *testing.T) {
	rewrite(t, repository+"/docs/kernels.md", func(page string) string {
		var features strings.Builder
		features.WriteString("| feature | option | used by | without it |\n|---|---|---|---|\n")
		for _, f := range netops.Features() {
			option := f.Option
			if f.Since != "" {
				option = strings.TrimPrefix(option+", Linux "+f.Since, ", ")
			}
			fmt.Fprintf(&features, "| `%s` | %s | %s | %s |\n", f.Name, option, f.Use, f.Without)
		}
		return replaceBlock(t, page, "<!-- features:start -->", "<!-- features:end -->", features.String())
	})
}
