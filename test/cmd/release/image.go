package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"path/filepath"
	"time"
)

// Media types of the OCI image specification, v1.1.
const (
	mediaIndex    = "application/vnd.oci.image.index.v1+json"
	mediaManifest = "application/vnd.oci.image.manifest.v1+json"
	mediaConfig   = "application/vnd.oci.image.config.v1+json"
	mediaLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// object is a JSON object.
type object = map[string]any

// blobs are the members of an OCI image layout, by digest.
type blobs struct{ members []member }

// add stores a blob and returns its descriptor.
func (b *blobs) add(media string, content []byte) object {
	sum := sha256.Sum256(content)
	digest := hex.EncodeToString(sum[:])
	b.members = append(b.members, member{name: "blobs/sha256/" + digest, mode: 0o644, content: content})
	return object{"mediaType": media, "digest": "sha256:" + digest, "size": len(content)}
}

// addJSON stores a document.
func (b *blobs) addJSON(media string, doc object) (object, error) {
	content, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	return b.add(media, content), nil
}

// image writes an archive of an OCI image layout. The image has the program and its licences, for each architecture.
func (r *release) image(context.Context) error {
	var b blobs
	var manifests []object
	labels := object{
		"org.opencontainers.image.title": "cnibox", "org.opencontainers.image.version": r.version,
		"org.opencontainers.image.revision": r.commit, "org.opencontainers.image.source": source,
		"org.opencontainers.image.licenses": "Apache-2.0", "org.opencontainers.image.created": r.at.Format(time.RFC3339),
	}
	for _, arch := range r.architectures {
		m, err := r.platform(&b, arch, labels)
		if err != nil {
			return err
		}
		manifests = append(manifests, m)
	}
	index, err := b.addJSON(mediaIndex, object{"schemaVersion": 2, "mediaType": mediaIndex, "manifests": manifests, "annotations": labels})
	if err != nil {
		return err
	}
	// containerd takes the image's name from the first annotation, podman and skopeo the tag from the second.
	index["annotations"] = object{"io.containerd.image.name": "ghcr.io/cnibox/cnibox:" + r.version, "org.opencontainers.image.ref.name": r.version}
	root, err := json.Marshal(object{"schemaVersion": 2, "mediaType": mediaIndex, "manifests": []object{index}})
	if err != nil {
		return err
	}
	members := append([]member{
		{name: "oci-layout", mode: 0o644, content: []byte(`{"imageLayoutVersion":"1.0.0"}`)},
		{name: "index.json", mode: 0o644, content: root},
		{name: "blobs/", mode: 0o755},
		{name: "blobs/sha256/", mode: 0o755},
	}, b.members...)
	return r.writeTarFile(r.name("-image.oci.tar"), members)
}

// platform stores the manifest, the configuration and the one layer of an architecture.
func (r *release) platform(b *blobs, arch string, labels object) (object, error) {
	files := []member{
		{name: "usr/", mode: 0o755},
		{name: "usr/bin/", mode: 0o755},
		{name: "usr/bin/cnibox", mode: 0o755, path: r.binary(arch)},
	}
	if r.src != "" { // not a test's image
		files = append(files, member{name: "usr/share/", mode: 0o755}, member{name: "usr/share/doc/", mode: 0o755}, member{name: "usr/share/doc/cnibox/", mode: 0o755})
		for _, name := range []string{"LICENSE", noticesFile} {
			files = append(files, member{name: "usr/share/doc/cnibox/" + name, mode: 0o644, path: filepath.Join(r.src, name)})
		}
	}
	plain := sha256.New()
	if err := writeTar(plain, r.at, files); err != nil {
		return nil, err
	}
	layer, err := tarball(r.at, files)
	if err != nil {
		return nil, err
	}
	config, err := b.addJSON(mediaConfig, object{
		"created": r.at.Format(time.RFC3339), "architecture": arch, "os": "linux",
		"config":  object{"Entrypoint": []string{"/usr/bin/cnibox"}, "Cmd": []string{"help"}, "Env": []string{"PATH=/usr/bin"}, "Labels": labels},
		"rootfs":  object{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(plain.Sum(nil))}},
		"history": []object{{"created": r.at.Format(time.RFC3339), "created_by": "make release VERSION=" + r.version}},
	})
	if err != nil {
		return nil, err
	}
	manifest, err := b.addJSON(mediaManifest, object{
		"schemaVersion": 2, "mediaType": mediaManifest, "config": config,
		"layers": []object{b.add(mediaLayer, layer)}, "annotations": labels,
	})
	if err != nil {
		return nil, err
	}
	manifest["platform"] = object{"architecture": arch, "os": "linux"}
	return manifest, nil
}
