package container

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// bundle returns a bundle with a configuration.
func bundle(t testing.TB, text string) *Bundle {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
	b, err := OpenBundle(dir)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

const (
	dockers = `{"ociVersion": "1.0.2", "x-unknown": [1, {"a": null}], "root": {"path": "rootfs"}, "process": {"args": ["ib_write_bw", "-F"]},
		"mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}, {"destination": "/etc/ld.so.preload", "type": "bind", "source": "/old"}],
		"hooks": {"prestart": [{"path": "/usr/bin/dockerd"}]},
		"linux": {"namespaces": [{"type": "network"}], "devices": [{"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229}, {"path": "/vrdma.io/nic=red.web", "type": "c", "major": 1, "minor": 3}]}}`
)

func TestWanted(t *testing.T) {
	for _, c := range []struct{ config, want, problem string }{ // with annotations allowed
		{dockers, "red.web", ""},
		{`{}`, "", ""},
		{`{"annotations": {"vrdma.io/nic": "default"}}`, "default", ""},
		{`{"annotations": {"vrdma.io/nic": "red.web"}, "linux": {"devices": [{"path": "/vrdma.io/nic=red.web"}]}}`, "red.web", ""},
		{`{"annotations": {"vrdma.io/nic": "red.db"}, "linux": {"devices": [{"path": "/vrdma.io/nic=red.web"}]}}`, "", "asks for 2 NICs (red.db, red.web)"},
		{`{"annotations": {"vrdma.io/nic": ""}}`, "", "without a name"},
		{`{"process": {"env": ["vrdma.io/nic=red.web", "VRDMA_NIC=red.web"]}}`, "", ""}, // an image can set variables
		{`{"linux": {"devices": 7}}`, "", "the devices"},
		{`{"annotations": []}`, "", "annotations"},
	} {
		got, err := bundle(t, c.config).Wanted(true)
		if got != c.want || (err != nil) != (c.problem != "") || err != nil && !strings.Contains(err.Error(), c.problem) {
			t.Errorf("%s: %q, %v; want %q, %q", c.config, got, err, c.want, c.problem)
		}
	}
	for config, want := range map[string]string{ // an image's annotations may be the container's
		dockers: "red.web",
		`{"annotations": {"vrdma.io/nic": "red.db"}}`:                                                            "",
		`{"annotations": {"vrdma.io/nic": "red.db"}, "linux": {"devices": [{"path": "/vrdma.io/nic=red.web"}]}}`: "red.web",
	} {
		if got, err := bundle(t, config).Wanted(false); got != want || err != nil {
			t.Errorf("%s, without annotations: %q, %v; want %q", config, got, err, want)
		}
	}
}

func TestGive(t *testing.T) {
	b := bundle(t, dockers)
	p := place(t, "/v/red/web/nic/vrdma.sock")
	for range 2 { // the second time nothing changes
		if err := b.Give(p, Hooks("/usr/bin/vrdma", "/v/s", "red.web")); err != nil {
			t.Fatal(err)
		}
		if err := b.Write(); err != nil {
			t.Fatal(err)
		}
	}
	again, err := OpenBundle(filepath.Dir(b.path))
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(b.path); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("the file: %v, %v", info, err)
	}
	var mounts []ociMount
	if err := again.get("mounts", &mounts); err != nil || len(mounts) != 3 || mounts[0].Destination != "/proc" || mounts[1].Source != "/v/red/web/nic" || mounts[2].Destination != Preload {
		t.Errorf("mounts: %+v, %v", mounts, err)
	}
	devices, linux, err := again.devices()
	if err != nil || len(devices) != 1 || !strings.Contains(string(devices[0]), "/dev/fuse") || !strings.Contains(string(linux["namespaces"]), "network") {
		t.Errorf("linux: %s, %v", linux, err)
	}
	var hooks map[string][]ociHook
	if err := again.get("hooks", &hooks); err != nil || len(hooks) != 4 || len(hooks["createRuntime"]) != 1 || len(hooks["poststop"]) != 1 || len(hooks["createContainer"]) != 1 || hooks["prestart"][0].Path != "/usr/bin/dockerd" ||
		!slices.Equal(hooks["createRuntime"][0].Args, []string{"vrdma", "--socket", "/v/s", "oci-hook", "look", "red.web"}) {
		t.Errorf("hooks: %+v, %v", hooks, err)
	}
	if string(again.whole["x-unknown"]) != `[1,{"a":null}]` {
		t.Errorf("what we do not know: %s", again.whole["x-unknown"])
	}
	if root, err := again.Root(); err != nil || root != filepath.Join(filepath.Dir(b.path), "rootfs") {
		t.Errorf("root: %s, %v", root, err)
	}
	if again.Program() != "ib_write_bw" {
		t.Errorf("program: %s", again.Program())
	}
	if nic, err := again.Wanted(true); nic != "" || err != nil {
		t.Errorf("it still asks for %q, %v", nic, err)
	}
}

func TestBundleOf(t *testing.T) {
	for line, want := range map[string]string{
		"--root /r --log /l --log-format json create --bundle /b --pid-file /p one": "/b",
		"--root=/r --systemd-cgroup create --bundle=/b one":                         "/b",
		"--debug run -b /b one":           "/b",
		"run one":                         ".",
		"--root create state one":         "-",
		"--root /r start one":             "-",
		"--root /r delete --force create": "-",
		"--version":                       "-",
		"":                                "-",
		"--root /r restore --bundle /b --image-path /i one": "/b",
	} {
		dir, makes := BundleOf(strings.Fields(line))
		if !makes {
			dir = "-"
		}
		if dir != want {
			t.Errorf("%s: %s, want %s", line, dir, want)
		}
	}
	if got := OptionOf([]string{"--log", "/l", "--log-format=json"}, "--log-format"); got != "json" {
		t.Errorf("--log-format: %q", got)
	}
}

func TestState(t *testing.T) {
	id := strings.Repeat("0123456789abcdef", 4)
	for text, want := range map[string]string{
		`{"id": "` + id + `", "pid": 7, "bundle": "/b"}`: id[:12],
		`{"id": "web"}`: "web",
		`{"id": "x", "annotations": {"io.kubernetes.cri.sandbox-namespace": "team", "io.kubernetes.cri.sandbox-name": "pod"}}`: "team/pod",
	} {
		s, err := ReadState(strings.NewReader(text))
		if err != nil || s.Name() != want {
			t.Errorf("%s: %v, %v, want %s", text, s, err, want)
		}
	}
	for _, text := range []string{"7", "{}", `{"id": "", "pid": 7}`} {
		if _, err := ReadState(strings.NewReader(text)); err == nil {
			t.Errorf("%s is a state", text)
		}
	}
}

func TestMergedText(t *testing.T) {
	for own, want := range map[string]string{
		"/lib/a.so":                  "/lib/a.so\n" + PreloadText,
		"/lib/a.so /lib/b.so\n\n# x": "/lib/a.so /lib/b.so\n\n# x\n" + PreloadText,
		"/x/libvrdma.so":             "/x/libvrdma.so",
	} {
		if got := string(mergedText([]byte(own))); got != want {
			t.Errorf("%q: %q, want %q", own, got, want)
		}
	}
}

func FuzzBundle(f *testing.F) {
	f.Add(dockers)
	f.Add(`{"hooks": null, "mounts": null, "linux": null}`)
	f.Add(`{"hooks": {"createRuntime": null}, "mounts": [7], "linux": {"devices": [{"path": "/vrdma.io/nic="}]}}`)
	f.Fuzz(func(t *testing.T, text string) {
		whole, err := parseBundle([]byte(text))
		if err != nil {
			return
		}
		b := &Bundle{path: "config.json", whole: whole}
		b.Wanted(true)
		b.Root()
		b.Program()
		if b.Give(place(t, "/v/nic/vrdma.sock"), Hooks("/v", "/s", "a.b")) == nil {
			if _, err := json.Marshal(b.whole); err != nil {
				t.Error(err)
			}
			if nic, err := (&Bundle{whole: map[string]json.RawMessage{"linux": b.whole["linux"]}}).Wanted(true); b.whole["linux"] != nil && (nic != "" || err != nil) {
				t.Errorf("it still asks for %q, %v", nic, err)
			}
		}
	})
}

func FuzzGenerated(f *testing.F) {
	f.Add([]byte(`{"cdiVersion": "0.5.0", "kind": "vrdma.io/nic", "devices": [{"containerEdits": {"mounts": [{}, {}]}}]}`))
	f.Fuzz(func(t *testing.T, text []byte) { generated(text) })
}
