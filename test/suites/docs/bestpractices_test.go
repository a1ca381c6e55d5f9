package docs

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestBestPractices: docs/bestpractices.json answers the 67 criteria of OpenSSF's passing badge, and names files and targets that exist.
func TestBestPractices(t *testing.T) {
	var answers map[string]string
	if err := json.Unmarshal([]byte(source(t, "docs/bestpractices.json")), &answers); err != nil {
		t.Fatal(err)
	}
	makefile := source(t, "Makefile")
	for key, status := range answers {
		criterion, ok := strings.CutSuffix(key, "_status")
		if !ok {
			continue
		}
		why := answers[criterion+"_justification"]
		if why == "" || !slices.Contains([]string{"Met", "Unmet", "N/A"}, status) {
			t.Errorf("%s is %q: %q", criterion, status, why)
		}
		for _, path := range regexp.MustCompile(`(?:docs/|api/)?\.?\w[\w-]*\.(?:md|txt|yml)\b`).FindAllString(why, -1) {
			if _, err := os.Stat("../../../" + path); err != nil {
				t.Errorf("%s: %v", criterion, err)
			}
		}
		for _, target := range regexp.MustCompile(`\bmake ([a-z-]+)`).FindAllStringSubmatch(why, -1) {
			if !strings.Contains(makefile, "\n"+target[1]+":") {
				t.Errorf("%s: no make %s", criterion, target[1])
			}
		}
	}
	if len(answers) != 2*67 {
		t.Errorf("%d answers", len(answers))
	}
}
