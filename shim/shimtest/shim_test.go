package shimtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/client/protocol"
)

// TestPrograms runs every program of testdata; each checks itself.
func TestPrograms(t *testing.T) {
	for _, name := range []string{"files", "paths", "interrupt", "register", "deregister", "writers", "fork", "channel", "death", "netlink"} {
		t.Run(name, func(t *testing.T) {
			f := fakeFor(t, name)
			out := mustRun(t, f, library(t), program(t, name))
			if out != "" && name != "death" {
				t.Errorf("printed:\n%s", out)
			}
			f.waitIdle(t)
		})
	}
}

// TestKeep: no byte is lost where something runs out, ends or was moved, also on an older kernel.
func TestKeep(t *testing.T) {
	for _, name := range []string{"moved", "appended", "leaderless", "descriptors", "addresses", "mappings", "crowd", "beside", "beneath"} {
		for kernel, wrap := range map[string][]string{"new": nil, "old": {program(t, "oldkernel")}} {
			if name == "crowd" && kernel == "old" {
				continue // without userfaultfd memory is not joined
			}
			t.Run(name+"/"+kernel, func(t *testing.T) {
				f := startFake(t)
				mustRun(t, f, library(t), append(wrap, program(t, "keep"), name)...)
				f.waitIdle(t)
			})
		}
	}
}

// TestTracer: the daemon may trace the program from before the greeting until its answer, and
// is named where it can be. What the program has named itself is named again.
func TestTracer(t *testing.T) {
	for _, args := range [][]string{nil, {"elsewhere"}, {"kept"}} {
		f := startFake(t)
		mustRun(t, f, library(t), append([]string{program(t, "tracer")}, args...)...)
		f.waitIdle(t)
	}
}

// waitIdle waits until every connection is closed: nothing may leak.
func (f *fake) waitIdle(t *testing.T) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for f.sessions() != 0 {
		if time.Now().After(deadline) {
			t.Fatalf("%d connections are open after the program ended, want 0", f.sessions())
		}
		time.Sleep(time.Millisecond)
	}
}

// TestNetlinkRefused: where the daemon does not answer, nor does netlink, and nobody prints
// anything: libibverbs goes on to sysfs.
func TestNetlinkRefused(t *testing.T) {
	f := startFake(t)
	f.refuse(protocol.Welcome{Magic: protocol.Magic, Protocol: protocol.Version, Error: int32(syscall.EOPNOTSUPP), Text: "an older daemon"})
	if out := mustRun(t, f, library(t), program(t, "netlink"), "refused"); out != "" {
		t.Errorf("printed:\n%s", out)
	}
	f.die()
	if out := mustRun(t, f, library(t), program(t, "netlink"), "refused"); out != "" {
		t.Errorf("without a daemon it printed:\n%s", out)
	}
}

// TestUnprivileged runs the programs that need userfaultfd as a user who gets it for
// user-mode faults only.
func TestUnprivileged(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("TestPrograms was unprivileged already")
	}
	for _, name := range []string{"register", "deregister", "writers", "fork"} {
		t.Run(name, func(t *testing.T) {
			f := startFake(t)
			dir := filepath.Dir(f.socket)
			for path, mode := range map[string]os.FileMode{filepath.Dir(dir): 0o755, dir: 0o755, f.socket: 0o777} {
				if err := os.Chmod(path, mode); err != nil {
					t.Fatal(err)
				}
			}
			cmd := command(t, f, library(t), program(t, name))
			cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", name, err, out)
			}
			f.waitIdle(t)
		})
	}
}

// TestOldKernel: without the newer system calls everything works, more slowly. (But fork
// is run with one thread: see README.md.)
func TestOldKernel(t *testing.T) {
	for name, args := range map[string][]string{"files": nil, "register": nil, "deregister": nil, "writers": nil, "fork": {"0"}, "channel": nil, "death": nil} {
		t.Run(name, func(t *testing.T) {
			f := fakeFor(t, name)
			argv := append([]string{program(t, "oldkernel"), program(t, name)}, args...)
			out, err := run(t, f, library(t), argv...)
			if err != nil {
				t.Fatalf("%s: %v\n%s", name, err, out)
			}
			f.waitIdle(t)
		})
	}
}

// TestSpeed prints what registration costs; it judges nothing.
func TestSpeed(t *testing.T) {
	f := startFake(t)
	t.Log(mustRun(t, f, library(t), program(t, "speed")))
}

// TestSanitized runs the programs with a library built with AddressSanitizer and
// UndefinedBehaviorSanitizer. Not fork: a child of several threads hangs in the
// sanitizer's own allocator, whose lock another thread held.
func TestSanitized(t *testing.T) {
	flags := []string{"-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"}
	lib := library(t, flags...)
	var preload []string
	for _, name := range []string{"libasan.so", "libubsan.so"} {
		path, err := exec.Command("gcc", "-print-file-name="+name).Output()
		if err != nil || !filepath.IsAbs(strings.TrimSpace(string(path))) {
			t.Fatalf("no %s: %v", name, err)
		}
		preload = append(preload, strings.TrimSpace(string(path)))
	}
	for _, name := range []string{"files", "paths", "interrupt", "register", "deregister", "writers", "channel", "death"} {
		t.Run(name, func(t *testing.T) {
			f := fakeFor(t, name)
			cmd := command(t, f, strings.Join(append(preload, lib), ":"), program(t, name))
			cmd.Env = append(cmd.Env, "ASAN_OPTIONS=detect_leaks=0", "UBSAN_OPTIONS=print_stacktrace=1")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", name, err, out)
			}
		})
	}
}
