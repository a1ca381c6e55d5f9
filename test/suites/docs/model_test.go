package docs

import (
	"regexp"
	"strings"
	"testing"
)

// TestModel: the steps and functions exist that docs/model/README.md maps to each other.
func TestModel(t *testing.T) {
	model := source(t, "docs/model/range.pml")
	rows := regexp.MustCompile(`(?m)^([A-Za-z ]+) (\S+\.go):(\w+)$`).FindAllStringSubmatch(source(t, "docs/model/README.md"), -1)
	for _, row := range rows {
		for _, step := range strings.Fields(row[1]) {
			if !regexp.MustCompile(`(?m)^(inline|#define) ` + step + `\b`).MatchString(model) {
				t.Errorf("the model has no step %s", step)
			}
		}
		if !regexp.MustCompile(`(?m)^func (\(.*?\) )?` + row[3] + `\(`).MatchString(source(t, row[2])) {
			t.Errorf("%s has no function %s", row[2], row[3])
		}
	}
	if len(rows) < 10 {
		t.Errorf("%d rows", len(rows))
	}
}
