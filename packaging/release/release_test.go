package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var when = time.Unix(1767323045, 0).UTC()

func sample() image {
	return image{Name: "tool", Version: "1.2~rc1+3.gabc", Commit: "abc", Arch: "arm64", Description: "a tool", Entrypoint: "tool", Created: when,
		Files: []file{{"usr/bin/tool", 0o755, []byte("program")}, {"usr/lib/tool/tool.so", 0o644, []byte("library")}}}
}

// untar returns the files of an archive, and their headers in order.
func untar(t *testing.T, data []byte) (content map[string][]byte, headers []*tar.Header) {
	t.Helper()
	content = map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if err == io.EOF {
			return content, headers
		}
		if err != nil {
			t.Fatal(err)
		}
		if content[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
		headers = append(headers, h)
	}
}

// Every digest of an image is that of the blob, from the index down to the layer's files.
func TestImage(t *testing.T) {
	text, digest, err := sample().archive()
	if err != nil {
		t.Fatal(err)
	}
	blobs, _ := untar(t, text)
	get := func(d descriptor) []byte {
		blob, there := blobs[blobPath(d.Digest)]
		if !there || len(blob) != d.Size || digestOf(blob) != d.Digest {
			t.Fatalf("%s %s: there %v, %d bytes, want %d", d.MediaType, d.Digest, there, len(blob), d.Size)
		}
		return blob
	}
	var index struct{ Manifests []descriptor }
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	var config struct {
		Architecture string
		Config       struct {
			Entrypoint []string
			Labels     map[string]string
		}
		Rootfs struct {
			Diff []string `json:"diff_ids"`
		}
	}
	decode := func(data []byte, into any) {
		if err := json.Unmarshal(data, into); err != nil {
			t.Fatal(err)
		}
	}
	decode(blobs["index.json"], &index)
	if d := index.Manifests[0]; d.Digest != digest || d.Annotations["org.opencontainers.image.ref.name"] != "localhost/tool:1.2-rc1-3.gabc" {
		t.Errorf("the index has %+v, want %s", d, digest)
	}
	decode(get(index.Manifests[0]), &manifest)
	decode(get(manifest.Config), &config)
	if config.Architecture != "arm64" || config.Config.Entrypoint[0] != "tool" || config.Config.Labels["org.opencontainers.image.revision"] != "abc" {
		t.Errorf("the configuration is %+v", config)
	}
	z, err := gzip.NewReader(bytes.NewReader(get(manifest.Layers[0])))
	if err != nil {
		t.Fatal(err)
	}
	layer, err := io.ReadAll(z)
	if err != nil || digestOf(layer) != config.Rootfs.Diff[0] {
		t.Fatalf("the layer: %v, %s, want %s", err, digestOf(layer), config.Rootfs.Diff[0])
	}
	files, headers := untar(t, layer)
	if string(files["usr/bin/tool"]) != "program" || string(files["usr/lib/tool/tool.so"]) != "library" {
		t.Errorf("the layer has %v", files)
	}
	there := map[string]bool{}
	for _, h := range headers {
		if dir := filepath.Dir(strings.TrimSuffix(h.Name, "/")); dir != "." && !there[dir+"/"] {
			t.Errorf("%s comes before its directory", h.Name)
		}
		if there[h.Name] = true; !h.ModTime.Equal(when) {
			t.Errorf("%s is of %v, want %v", h.Name, h.ModTime, when)
		}
		if h.Name == "tmp/" && h.Mode != 0o1777 || h.Name == "usr/bin/tool" && h.Mode != 0o755 {
			t.Errorf("%s has mode %o", h.Name, h.Mode)
		}
	}
	again, _, err := sample().archive()
	if err != nil || !bytes.Equal(again, text) {
		t.Errorf("the same image twice differs: %v", err)
	}
}

// The SBOM of this test binary has the module's own dependencies, each once, and relations only between what it has.
func TestSBOM(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	library := filepath.Join(t.TempDir(), "lib.so")
	if err := os.WriteFile(library, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	text, err := sbomOf("vrdma", "1.0", when, []string{self, library})
	if err != nil {
		t.Fatal(err)
	}
	var d spdxDocument
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	ids := map[string]bool{d.ID: true}
	standard := false
	for _, p := range d.Packages {
		if ids[p.ID] {
			t.Errorf("%s is there twice", p.ID)
		}
		ids[p.ID] = true
		standard = standard || p.Name == "stdlib" && p.Version != ""
	}
	for _, r := range d.Relationships {
		if !ids[r.Element] || !ids[r.Related] {
			t.Errorf("%+v names something that is not there", r)
		}
	}
	if !standard || d.Creation.Created != "2026-01-02T03:04:05Z" || !strings.HasPrefix(d.Namespace, "https://") {
		t.Errorf("the SBOM lacks the standard library, or its date: %+v", d.Creation)
	}
	if _, err := sbomOf("x", "1", when, []string{"main.go"}); err == nil {
		t.Error("a file without build information has an SBOM")
	}
}

func TestNotes(t *testing.T) {
	const log = "# Changelog\n\nText.\n\n## Unreleased\n\n- new\n\n## v1.1.0, today\n\n### A\n- one\n\n## [1.0.0]\n- first\n"
	for version, want := range map[string]string{
		"v1.1.0": "# vrdma 1.1.0\n\n### A\n- one\n", "1.0.0": "# vrdma 1.0.0\n\n- first\n", "1.2.0+1.gabc": "# vrdma 1.2.0+1.gabc\n\n- new\n",
	} {
		if got, err := notes(log, version); err != nil || string(got) != want {
			t.Errorf("%s: got %q, %v, want %q", version, got, err, want)
		}
	}
	if _, err := notes("# Changelog\n", "1.0"); err == nil {
		t.Error("a changelog without sections has notes")
	}
}

// FuzzNotes: no changelog makes it fail otherwise than with an error.
func FuzzNotes(f *testing.F) {
	f.Add("## Unreleased\n- x\n", "v1")
	f.Add("## \n", "v1")
	f.Fuzz(func(t *testing.T, log, version string) {
		if text, err := notes(log, version); err == nil && !strings.HasPrefix(string(text), "# vrdma ") {
			t.Errorf("%q", text)
		}
	})
}
