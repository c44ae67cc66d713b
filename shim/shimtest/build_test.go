package shimtest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// build runs the compiler once for each output, in a directory that lives as long
// as the test binary.
var build struct {
	sync.Mutex
	dir  string
	done map[string]error
}

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "shimtest")
	if err != nil {
		panic(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil { // other users run the programs too
		panic(err)
	}
	build.dir, build.done = dir, map[string]error{}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

func compile(t *testing.T, name string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("no gcc")
	}
	build.Lock()
	defer build.Unlock()
	out := filepath.Join(build.dir, name)
	err, built := build.done[name]
	if !built {
		var text []byte
		text, err = exec.Command("gcc", append([]string{"-o", out}, args...)...).CombinedOutput()
		build.done[name] = err
		if err != nil {
			t.Logf("%s", text)
		}
	}
	if err != nil {
		t.Fatalf("compiling %s: %v", name, err)
	}
	return out
}

// library builds libvrdma.so as shim.mk does, with extra flags.
func library(t *testing.T, extra ...string) string {
	t.Helper()
	sources, err := filepath.Glob("../*.c")
	if err != nil || len(sources) == 0 {
		t.Fatalf("no sources: %v", err)
	}
	args := strings.Fields("-std=c11 -D_GNU_SOURCE -U_FORTIFY_SOURCE -O2 -g -fPIC -shared -Wall -Wextra -Werror" +
		" -Wno-nonnull-compare -fvisibility=hidden -fno-strict-aliasing")
	args = append(args, extra...)
	args = append(args, sources...)
	args = append(args, strings.Fields("-Wl,--no-as-needed -l:libdl.so.2 -l:libpthread.so.0")...)
	return compile(t, "libvrdma"+strings.Join(extra, "")+".so", args...)
}

func program(t *testing.T, name string, extra ...string) string {
	t.Helper()
	args := strings.Fields("-std=gnu11 -D_GNU_SOURCE -O1 -g -Wall -Wextra -Werror -pthread")
	args = append(args, extra...)
	args = append(args, filepath.Join("testdata", name+".c"))
	return compile(t, name+strings.Join(extra, ""), args...)
}

// command returns argv with the library loaded. After two minutes it is killed with all its children.
func command(t *testing.T, f *fake, lib string, argv ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(f.environment(), "LD_PRELOAD="+lib)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// run runs a command with the library loaded and returns its output.
func run(t *testing.T, f *fake, lib string, argv ...string) (string, error) {
	t.Helper()
	out, err := command(t, f, lib, argv...).CombinedOutput()
	return string(out), err
}

func mustRun(t *testing.T, f *fake, lib string, argv ...string) string {
	t.Helper()
	out, err := run(t, f, lib, argv...)
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, out)
	}
	return out
}
