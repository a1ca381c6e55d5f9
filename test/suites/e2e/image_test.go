package e2e

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// entry is one file of an image.
type entry struct {
	name, link string
	perm       int64
	data       []byte
}

// writeImage writes a container image with one layer, busybox, in the format of `docker save`, which every runtime imports without
// a registry.
func writeImage(t *testing.T, name string, entrypoint ...string) string {
	t.Helper()
	return writeImageWith(t, []string{name}, nil, entrypoint, nil)
}

// writeImageWith is writeImage of an image with several names, more files and default arguments.
func writeImageWith(t *testing.T, names []string, more []entry, entrypoint, args []string) string {
	t.Helper()
	box, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatalf("read busybox: %v: run test/apt.sh first", err)
	}
	layer := []entry{
		{name: "bin/busybox", perm: 0o755, data: box},
		{name: "etc/passwd", perm: 0o644, data: []byte("root:x:0:0::/:/bin/sh\n")},
	}
	for _, applet := range []string{"sh", "cat", "httpd", "ip", "ping", "sleep", "wget"} {
		layer = append(layer, entry{name: "bin/" + applet, link: "busybox"})
	}
	for _, dir := range []string{"dev/", "proc/", "sys/", "tmp/"} {
		layer = append(layer, entry{name: dir, perm: 0o755})
	}
	layerTar := tarOf(t, append(layer, more...))
	sum := sha256.Sum256(layerTar)
	config := jsonOf(t, map[string]any{
		"architecture": "amd64", "os": "linux",
		"config": map[string]any{"Entrypoint": entrypoint, "Cmd": args, "Env": []string{"PATH=/bin"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum[:])}},
	})
	manifest := jsonOf(t, []map[string]any{{"Config": "config.json", "RepoTags": names, "Layers": []string{"layer.tar"}}})
	image := tarOf(t, []entry{
		{name: "layer.tar", perm: 0o644, data: layerTar},
		{name: "config.json", perm: 0o644, data: config},
		{name: "manifest.json", perm: 0o644, data: manifest},
	})
	file := filepath.Join(t.TempDir(), "image.tar")
	if err := os.WriteFile(file, image, 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// tarOf packs entries: a link if link is set, a directory if the name ends in a slash, else a file.
func tarOf(t *testing.T, entries []entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Mode: e.perm, Size: int64(len(e.data)), Typeflag: tar.TypeReg}
		switch {
		case e.link != "":
			h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, e.link, 0o777
		case e.name[len(e.name)-1] == '/':
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(e.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func jsonOf(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
