package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
)

// A file of an image. A path that ends with a slash is a directory.
type file struct {
	Path    string
	Mode    int64
	Content []byte
}

// An image is one program and what it needs, for one architecture.
type image struct {
	Name, Version, Commit, Arch, Description, Entrypoint string
	Created                                              time.Time
	Files                                                []file
}

// base is in every image: users for `runAsUser` and lookups of the root user, and places that programs write to.
var base = []file{
	{"etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/sbin/nologin\nnobody:x:65534:65534:nobody:/:/sbin/nologin\n")},
	{"etc/group", 0o644, []byte("root:x:0:\nnogroup:x:65534:\n")},
	{"root/", 0o700, nil},
	{"run/", 0o755, nil},
	{"tmp/", 0o1777, nil},
	{"var/lib/", 0o755, nil},
}

// The media types of the OCI image specification.
const (
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// A descriptor names a blob.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    map[string]string `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

func digestOf(blob []byte) string {
	sum := sha256.Sum256(blob)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func describe(mediaType string, blob []byte) descriptor {
	return descriptor{MediaType: mediaType, Digest: digestOf(blob), Size: len(blob)}
}

// blobPath is where an OCI layout has a blob.
func blobPath(digest string) string { return "blobs/" + strings.Replace(digest, ":", "/", 1) }

// tarOf writes files in the order of their paths, with the directories above them.
func tarOf(files []file, when time.Time) ([]byte, error) {
	all := map[string]file{}
	for _, f := range files {
		for dir := path.Dir(strings.TrimSuffix(f.Path, "/")); dir != "."; dir = path.Dir(dir) {
			if _, there := all[dir+"/"]; !there {
				all[dir+"/"] = file{dir + "/", 0o755, nil}
			}
		}
		all[f.Path] = f
	}
	var names []string
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range names {
		f := all[name]
		h := &tar.Header{Name: f.Path, Mode: f.Mode, Size: int64(len(f.Content)), ModTime: when, Typeflag: tar.TypeReg, Format: tar.FormatUSTAR}
		if strings.HasSuffix(f.Path, "/") {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Path, err)
		}
		if _, err := w.Write(f.Content); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return b.Bytes(), err
}

func compress(data []byte) ([]byte, error) {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	err = w.Close()
	return b.Bytes(), err
}

// tag is the version as a tag of an image, which has neither + nor ~.
func (i image) tag() string { return strings.NewReplacer("+", "-", "~", "-").Replace(i.Version) }

// archive returns the image as a tar file that podman, Docker and containerd load, and the digest of its manifest.
func (i image) archive() (text []byte, digest string, err error) {
	if i.Name == "" || i.Version == "" || i.Arch == "" || i.Entrypoint == "" {
		return nil, "", errors.New("an image needs a name, a version, an architecture and an entrypoint")
	}
	created := i.Created.Format(time.RFC3339)
	plain, err := tarOf(append(slices.Clone(base), i.Files...), i.Created)
	if err != nil {
		return nil, "", err
	}
	layer, err := compress(plain)
	if err != nil {
		return nil, "", err
	}
	labels := map[string]string{
		"org.opencontainers.image.title":       i.Name,
		"org.opencontainers.image.description": i.Description,
		"org.opencontainers.image.version":     i.Version,
		"org.opencontainers.image.revision":    i.Commit,
		"org.opencontainers.image.created":     created,
		"org.opencontainers.image.licenses":    "Apache-2.0",
	}
	config, err := json.Marshal(map[string]any{
		"created": created, "architecture": i.Arch, "os": "linux",
		"config": map[string]any{
			"Entrypoint": []string{i.Entrypoint}, "Env": []string{"PATH=/usr/bin", "HOME=/root"}, "Labels": labels, "WorkingDir": "/",
		},
		"rootfs":  map[string]any{"type": "layers", "diff_ids": []string{digestOf(plain)}},
		"history": []any{map[string]string{"created": created, "created_by": "make images"}},
	})
	if err != nil {
		return nil, "", err
	}
	manifest, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": typeManifest, "config": describe(typeConfig, config),
		"layers": []descriptor{describe(typeLayer, layer)}, "annotations": labels,
	})
	if err != nil {
		return nil, "", err
	}
	ref := "localhost/" + i.Name + ":" + i.tag()
	d := describe(typeManifest, manifest)
	d.Platform = map[string]string{"architecture": i.Arch, "os": "linux"}
	d.Annotations = map[string]string{"org.opencontainers.image.ref.name": ref, "io.containerd.image.name": ref}
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": []descriptor{d}})
	if err != nil {
		return nil, "", err
	}
	// Docker before 25 reads this file instead of the index.
	docker, err := json.Marshal([]any{map[string]any{
		"Config": blobPath(digestOf(config)), "RepoTags": []string{ref}, "Layers": []string{blobPath(digestOf(layer))}}})
	if err != nil {
		return nil, "", err
	}
	text, err = tarOf([]file{
		{"oci-layout", 0o644, []byte(`{"imageLayoutVersion":"1.0.0"}`)},
		{"index.json", 0o644, index},
		{"manifest.json", 0o644, docker},
		{blobPath(d.Digest), 0o644, manifest},
		{blobPath(digestOf(config)), 0o644, config},
		{blobPath(digestOf(layer)), 0o644, layer},
	}, i.Created)
	return text, d.Digest, err
}
