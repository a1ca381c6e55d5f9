package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestReferenceRelease: the pages name the release that was measured.
func TestReferenceRelease(t *testing.T) {
	for printed, want := range map[string]string{"CNI bridge plugin v1.2.3": "v1.2.3", "something else": ""} {
		dir := t.TempDir()
		plugin := "#!/bin/sh\necho '" + printed + "' >&2; echo 'CNI protocol versions supported: 1.0.0' >&2\n"
		if err := os.WriteFile(filepath.Join(dir, "bridge"), []byte(plugin), 0o700); err != nil {
			t.Fatal(err)
		}
		got, err := referenceRelease(t.Context(), dir)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v, want %q", printed, got, err, want)
		}
	}
}
