package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestImageOf: an image is made of a static program only.
func TestImageOf(t *testing.T) {
	self, err := os.Executable() // the tests are built without cgo
	if err != nil {
		t.Fatal(err)
	}
	for program, want := range map[string]string{
		self: "", "/bin/sh": "dynamically linked: it needs /lib", "static.go": "bad magic number", "/none": "no such file",
	} {
		r := release{program: program, out: filepath.Join(t.TempDir(), "dist")}
		err := r.imageOf(t.Context())
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", program, err, want)
		}
		if _, err := os.Stat(r.out); (err == nil) != (want == "") {
			t.Errorf("%s: the directory: %v", program, err)
		}
	}
}
