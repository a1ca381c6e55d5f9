package docs

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// fuzzTarget matches a target in the code.
var fuzzTarget = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(\w+ \*testing\.F\)`)

// TestFuzzTargets: test/oss-fuzz.sh builds every fuzz target.
func TestFuzzTargets(t *testing.T) {
	var want []string
	for _, file := range sources(t) {
		if strings.HasSuffix(file, "_test.go") {
			for _, target := range fuzzTarget.FindAllStringSubmatch(source(t, file), -1) {
				dir := path.Dir(file)
				want = append(want, "compile_native_go_fuzzer github.com/cnibox/cnibox/"+dir+" "+target[1]+" "+strings.ReplaceAll(dir, "/", "_")+"_"+target[1])
			}
		}
	}
	have := slices.DeleteFunc(strings.Split(strings.TrimSpace(source(t, "test/oss-fuzz.sh")), "\n"), func(line string) bool { return strings.HasPrefix(line, "#") })
	slices.Sort(want)
	slices.Sort(have)
	if !slices.Equal(have, want) {
		t.Errorf("test/oss-fuzz.sh has\n%s\nwant\n%s", strings.Join(have, "\n"), strings.Join(want, "\n"))
	}
}
