package container

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/platform/launch"
)

func place(t *testing.T, path string) launch.Place {
	t.Helper()
	p, err := launch.At(path)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestArgs(t *testing.T) {
	p := place(t, "/run/v.sock.nics/red/web/nic/vrdma.sock")
	const dir, file = "/run/v.sock.nics/red/web/nic", "/run/v.sock.nics/red/web/nic/vrdma.sock.d/ld.so.preload"
	for _, test := range []struct {
		format string
		want   []string
	}{
		{"podman", []string{"-v", dir + ":/run/vrdma:ro", "-v", file + ":/etc/ld.so.preload:ro"}},
		{"docker", []string{"-v", dir + ":/run/vrdma:ro", "-v", file + ":/etc/ld.so.preload:ro"}},
		{"nspawn", []string{"--bind-ro=" + dir + ":/run/vrdma", "--bind-ro=" + file + ":/etc/ld.so.preload"}},
		{"lxc", []string{
			"lxc.mount.entry = " + dir + " run/vrdma none rbind,ro,nosuid,nodev,create=dir 0 0",
			"lxc.mount.entry = " + file + " etc/ld.so.preload none bind,ro,nosuid,nodev,create=file 0 0",
		}},
	} {
		got, err := Args(test.format, p)
		if err != nil || !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, %v, want %q", test.format, got, err, test.want)
		}
	}
	got, err := Args("oci", p)
	var mounts []ociMount
	if err != nil || len(got) != 1 || json.Unmarshal([]byte(got[0]), &mounts) != nil || len(mounts) != 2 ||
		mounts[0].Source != dir || mounts[0].Destination != Dir || mounts[1].Source != file || mounts[1].Type != "bind" {
		t.Errorf("oci: %q, %v", got, err)
	}
	if _, err := Args("rkt", p); err == nil || !strings.Contains(err.Error(), "podman, docker, lxc, nspawn, oci") {
		t.Errorf("an engine that we do not know: %v", err)
	}
	for _, f := range Formats {
		if _, err := Args(f, p); err != nil {
			t.Errorf("%s: %v", f, err)
		}
	}
}

// The preloaded object is in the mounted directory.
func TestPreloadText(t *testing.T) {
	if want := place(t, Dir+"/vrdma.sock").Library() + "\n"; PreloadText != want {
		t.Errorf("%q, want %q", PreloadText, want)
	}
}

func nics(t *testing.T, names ...string) (out []NIC) {
	for _, name := range names {
		of, nic, declared := strings.Cut(name, "/")
		if !declared {
			of, nic = "", name
		}
		out = append(out, NIC{Tenant: of, Name: nic, Place: place(t, "/run/v/"+name+"/vrdma.sock")})
	}
	return out
}

// read returns the devices of the directory's files, by file.
func read(t *testing.T, dir string) map[string][]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string][]string)
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		var s Spec
		if err := json.Unmarshal(text, &s); err != nil || s.Version != "0.5.0" || s.Kind != "vrdma.io/nic" {
			t.Fatalf("%s: %v\n%s", e.Name(), err, text)
		}
		for _, d := range s.Devices {
			out[e.Name()] = append(out[e.Name()], d.Name)
			if len(d.Edits.Mounts) != 2 || !slices.Contains(d.Edits.Mounts[0].Options, "ro") {
				t.Errorf("%s: mounts %+v", d.Name, d.Edits.Mounts)
			}
		}
	}
	return out
}

func TestKeeper(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cdi")
	k, err := Keep(dir, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		nics []NIC
		want map[string][]string
	}{
		{nil, map[string][]string{}},
		{nics(t, "default"), map[string][]string{"vrdma.json": {"default"}}},
		{nics(t, "default", "red/web", "blue/a", "red/db"), map[string][]string{"vrdma.json": {"default"}, "vrdma-red.json": {"red.db", "red.web"}, "vrdma-blue.json": {"blue.a"}}},
		{nics(t, "red/web"), map[string][]string{"vrdma-red.json": {"red.web"}}},
	} {
		if err := k.Put(test.nics); err != nil {
			t.Fatal(err)
		}
		if got := read(t, dir); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%v, want %v", got, test.want)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, "vrdma-red.json")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("a tenant's file: %v, %v, want mode 0600", info, err)
	}
	if _, err := Keep(dir, 0o600); !errors.Is(err, ErrKept) {
		t.Errorf("a second daemon: %v, want %v", err, ErrKept)
	}
	if err := k.Close(true); err != nil {
		t.Error(err)
	}
	if k, err = Keep(dir, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, want := read(t, dir), map[string][]string{"vrdma-red.json": {"red.web"}}; !reflect.DeepEqual(got, want) {
		t.Errorf("files that stayed for the next daemon: %v, want %v", got, want)
	}
	if err := k.Put(nics(t, "default")); err != nil {
		t.Error(err)
	}
	if got, want := read(t, dir), map[string][]string{"vrdma.json": {"default"}}; !reflect.DeepEqual(got, want) {
		t.Errorf("files of the next daemon: %v, want %v", got, want)
	}
	if err := k.Close(false); err != nil {
		t.Error(err)
	}
	os.Remove(dir) // the first keeper made it, and the second does not know
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory that was made is left: %v", err)
	}
}

// Files of other programs stay, and files of a dead daemon are removed.
func TestKeeperAmongOthers(t *testing.T) {
	dir := t.TempDir()
	old := Specs(nics(t, "default", "old/a"))
	for name, text := range map[string]string{
		"gpu.json": "{}", "vrdma.json": string(old[""].Text()), "vrdma-old.json": string(old["old"].Text()), ".vrdma.part": "{", "vrdma-empty.json": "",
		"vrdma-gpu.json":  `{"cdiVersion": "0.5.0", "kind": "example.com/gpu", "devices": [{"name": "a", "containerEdits": {"env": ["A=B"]}}]}`,
		"vrdma-mine.json": `{"cdiVersion": "0.5.0", "kind": "vrdma.io/nic", "devices": [{"name": "a", "containerEdits": {"env": ["A=B"]}}]}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	k, err := Keep(dir, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Put(nics(t, "default", "mine/a")); err == nil || !strings.Contains(err.Error(), "vrdma-mine.json exists and is not a file of vrdma") {
		t.Errorf("a file of a tenant's name that is not ours: %v", err)
	}
	if info, err := os.Stat(filepath.Join(dir, "vrdma.json")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the default NIC's file: %v, %v, want mode 0600", info, err)
	}
	if err := k.Close(false); err != nil {
		t.Error(err)
	}
	entries, err := os.ReadDir(dir)
	var left []string
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if err != nil || !slices.Equal(left, []string{"gpu.json", "vrdma-gpu.json", "vrdma-mine.json"}) {
		t.Errorf("left: %v, %v, want those that are not ours", left, err)
	}
}
