package doctor

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A stock kernel that boots under KVM is the proof; each other outcome says why KVM is not used.
func TestTrialBoot(t *testing.T) {
	const qemu = "qemu-system-x86_64"
	kernel := map[string]string{"boot/vmlinuz-6.1": "x"}
	answer := func(out string, err error) func(string) (string, error) {
		return func(string) (string, error) { return out, err }
	}
	for _, test := range []struct {
		name     string
		files    map[string]string
		programs map[string]string
		boot     func(string) (string, error)
		outcome  Outcome
		found    string
	}{
		{"boots", kernel, map[string]string{qemu: ""}, answer("Linux version 6.1\nVFS: Unable to mount root fs on unknown-block(0,0)\n", nil), Yes, "boots vmlinuz-6.1"},
		{"prints nothing", kernel, map[string]string{qemu: ""}, answer("", context.DeadlineExceeded), No, "did not end within 10s"},
		{"ends at once", kernel, map[string]string{qemu: ""}, answer("qemu: failed to set MSR 0x10a\n", errors.New("exit status 1")), No, "failed to set MSR 0x10a"},
		{"no QEMU", kernel, nil, answer("", nil), Unknown, "without QEMU"},
		{"no kernel", nil, map[string]string{qemu: ""}, answer("", nil), Unknown, "no kernel to boot"},
	} {
		m := fake(t, test.files, test.programs)
		m.Boot = test.boot
		if outcome, found := boots(m); outcome != test.outcome || !strings.Contains(found, test.found) {
			t.Errorf("%s: %s, %q; want %s, %q", test.name, outcome, found, test.outcome, test.found)
		}
	}
	// The newest kernel is tried; else that of experiments with guests.
	m := fake(t, map[string]string{"boot/vmlinuz-6.1": "x", "boot/vmlinuz-6.2": "x", "guest": "x"}, nil)
	if got := filepath.Base(m.kernel()); got != "vmlinuz-6.2" {
		t.Errorf("kernel %s", got)
	}
	m.GuestKernel = filepath.Join(m.Root, "guest")
	os.RemoveAll(filepath.Join(m.Root, "boot"))
	if got := m.kernel(); got != m.GuestKernel {
		t.Errorf("kernel %s", got)
	}
}

// shell is a remote shell that runs commands here. The program that is copied is a script, which stands for vrdma.
func shell(t *testing.T) []string { return []string{"sh", "-c", `shift; exec sh -c "$*"`, "sh"} }

// What cannot be reached, and what does not run there, is an error that says so, and leaves no file.
func TestPeerFails(t *testing.T) {
	m := fake(t, nil, nil)
	program := filepath.Join(t.TempDir(), "vrdma")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(program, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	place := filepath.Join(t.TempDir(), "place")
	write("echo \"$0\" >" + place + "; echo exec format error >&2; exit 126\n")
	if _, err := ExaminePeer(t.Context(), m, []string{"false"}, "u@h", program); err == nil || !strings.Contains(err.Error(), "u@h cannot be reached with false") {
		t.Errorf("an unreachable machine: %v", err)
	}
	if _, err := ExaminePeer(t.Context(), m, shell(t), "u@h", program); err == nil || !strings.Contains(err.Error(), "vrdma does not run on u@h") || !strings.Contains(err.Error(), "exec format error") {
		t.Errorf("a program that does not run: %v", err)
	}
	ran, err := os.ReadFile(place)
	if err != nil || !strings.HasPrefix(string(ran), "/tmp/vrdma-doctor.") {
		t.Fatalf("it ran as %q: %v", ran, err)
	}
	if _, err := os.Stat(filepath.Dir(string(ran))); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left: %v", filepath.Dir(string(ran)), err)
	}
}

// The answerer answers its peer and nobody else, and ends with its input. Between a machine and itself all is well.
func TestAnswer(t *testing.T) {
	in, stop := io.Pipe()
	from, out := io.Pipe()
	ended := make(chan error, 1)
	m := fake(t, nil, nil)
	go func() { ended <- answer(m, in, out, 0) }()
	g, err := greet(from, func() { t.Error("no greeting") })
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]Finding)
	for _, f := range reach(t.Context(), "127.0.0.1", &g) {
		found[f.Name] = f
	}
	if found["TCP"].Outcome != Yes || found["UDP"].Outcome != Yes || found["address"].Found != "127.0.0.1 to 127.0.0.1" || found["packets"].Found != "of 9000 bytes pass unfragmented" {
		t.Errorf("between: %+v", found)
	}
	stop.Close()
	if err := <-ended; err != nil {
		t.Errorf("the end of its input ends it: %v", err)
	}
	for _, f := range reach(t.Context(), "127.0.0.1", &g) {
		if f.Name == "TCP" && (f.Outcome != No || f.Do == "") {
			t.Errorf("a closed port: %+v", f)
		}
	}
}

// Versions that differ and missing devices are told, with what to do.
func TestComparePeers(t *testing.T) {
	found := func(name, what string) Finding { return Finding{Name: name, Outcome: Yes, Found: what} }
	list := compare([]Finding{found("perftest", "4.5"), found("qperf", "0.4.11"), found("devices", "rxe0/1 ACTIVE")}, []Finding{found("perftest", "6.20"), found("qperf", "0.4.11")})
	if v := list[0]; v.Outcome != No || v.Found != "perftest 4.5 here and 6.20 there" || v.Do == "" {
		t.Errorf("versions: %+v", v)
	}
	if d := list[1]; d.Outcome != No || !strings.Contains(d.Do, "rdma link add rxe0") {
		t.Errorf("devices: %+v", d)
	}
}
