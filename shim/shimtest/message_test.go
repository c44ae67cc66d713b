package shimtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"vrdma.dev/vrdma/internal/client/protocol"
)

// TestNoDaemon: the first line that a user reads names what is missing.
func TestNoDaemon(t *testing.T) {
	lib, prog := library(t), program(t, "limits")
	dir := t.TempDir()
	stale := filepath.Join(dir, "stale")
	if err := os.WriteFile(stale, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	long := filepath.Join(dir, strings.Repeat("a-long-directory-name/", 8), "socket")
	for _, c := range []struct {
		name, socket, want string
		errno              syscall.Errno
	}{
		{"no socket", filepath.Join(dir, "none"), "there is no vrdma daemon at " + filepath.Join(dir, "none"), syscall.ENODEV},
		{"stale socket", stale, "nobody listens at " + stale, syscall.ECONNREFUSED},
		{"no directory, long path", long, "there is no vrdma daemon at " + long, syscall.ENODEV},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := exec.Command(prog)
			cmd.Env = []string{"LD_PRELOAD=" + lib, "VRDMA_SOCKET=" + c.socket}
			out, err := cmd.CombinedOutput()
			if err == nil {
				t.Fatalf("the program opened a device")
			}
			for _, want := range []string{"vrdma: ", c.want, fmt.Sprintf("errno %d\n", int(c.errno))} {
				if !strings.Contains(string(out), want) {
					t.Errorf("printed %q, want %q in it", out, want)
				}
			}
		})
	}
}

func TestRefused(t *testing.T) {
	f := startFake(t)
	f.refuse(protocol.Welcome{Magic: protocol.Magic, Protocol: 9, Error: int32(syscall.EPROTONOSUPPORT), Text: "this daemon speaks protocol 9"})
	out, err := run(t, f, library(t), program(t, "limits"))
	if err == nil || !strings.Contains(out, "vrdma: this daemon speaks protocol 9\n") ||
		!strings.Contains(out, fmt.Sprintf("errno %d\n", int(syscall.EPROTONOSUPPORT))) {
		t.Errorf("printed %q (%v), want the daemon's own words and EPROTONOSUPPORT", out, err)
	}
}

func TestTooFewDescriptors(t *testing.T) {
	for _, left := range []string{"1", "2", "3", "4", "5", "6", "20"} {
		t.Run(left, func(t *testing.T) {
			f := startFake(t)
			out, err := run(t, f, library(t), program(t, "limits"), left)
			if err == nil || !strings.Contains(out, "too few file descriptors: raise ulimit -n") ||
				!strings.Contains(out, fmt.Sprintf("errno %d\n", int(syscall.EMFILE))) {
				t.Errorf("printed %q (%v), want EMFILE and what to do", out, err)
			}
		})
	}
}

// TestFailedOpenLeaksNothing: whichever descriptor cannot be opened, a failed open closes the others. (With a limit of
// 5, only the high number for the doorbell is missing.)
func TestFailedOpenLeaksNothing(t *testing.T) {
	for _, left := range []string{"3", "4", "5"} {
		t.Run(left, func(t *testing.T) {
			f := startFake(t)
			out, err := run(t, f, library(t), program(t, "limits"), left, "leak")
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 1 {
				t.Errorf("%v, want exit status 1\n%s", err, out)
			}
		})
	}
}

// TestValgrind: valgrind reports no error of the library.
func TestValgrind(t *testing.T) {
	valgrind, err := exec.LookPath("valgrind")
	if err != nil {
		t.Fatal("no valgrind: apt-get install valgrind")
	}
	f := startFake(t)
	out := mustRun(t, f, library(t), valgrind, "-q", "--error-exitcode=99", program(t, "valgrind"))
	if out != "" {
		t.Errorf("valgrind printed:\n%s", out)
	}
}

// TestLongSocketPath: a path that does not fit into sockaddr_un.
func TestLongSocketPath(t *testing.T) {
	f := startFake(t)
	dir := filepath.Join(t.TempDir(), strings.Repeat("a-long-directory-name-", 5))
	if err := os.Symlink(filepath.Dir(f.socket), dir); err != nil {
		t.Fatal(err)
	}
	f.socket = filepath.Join(dir, filepath.Base(f.socket))
	mustRun(t, f, library(t), program(t, "limits"))
}

// TestRestart ends the daemon and starts another one at the same path.
func TestRestart(t *testing.T) {
	f := startFake(t)
	done := make(chan error, 1)
	var out []byte
	cmd := command(t, f, library(t), program(t, "restart"))
	go func() {
		var err error
		out, err = cmd.CombinedOutput()
		done <- err
	}()
	f.wg.Wait() // the program made it end
	f.listen(t)
	if err := <-done; err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// TestPoll wraps poll_cq of a library that stands in for libibverbs.
func TestPoll(t *testing.T) {
	stub := compile(t, "libibverbs.so.1", "-shared", "-fPIC", "-Wl,-soname,libibverbs.so.1", "testdata/verbs_stub.c")
	for name, extra := range map[string][]string{
		"linked": {stub},
		"loaded": {"-DLOAD", "-ldl"},
		"found":  {"-DFIND", "-ldl"},
	} {
		t.Run(name, func(t *testing.T) {
			f := startFake(t)
			prog := compile(t, "poll-"+name, append([]string{"-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-pthread",
				"testdata/poll.c"}, extra...)...)
			cmd := command(t, f, library(t), prog)
			cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+filepath.Dir(stub))
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		})
	}
}

// TestVerbsHeader compares shim/verbs.h with libibverbs' header.
func TestVerbsHeader(t *testing.T) { compile(t, "verbs", "testdata/verbs.c") }

// TestNap: a polling thread on the daemon's processor sleeps, and no wake-up is lost. On another processor it sleeps if a yield, its
// own or the library's, has come back late. With napping switched off it does not sleep.
func TestNap(t *testing.T) {
	stub := compile(t, "libibverbs.so.1", "-shared", "-fPIC", "-Wl,-soname,libibverbs.so.1", "testdata/verbs_stub.c")
	prog := compile(t, "nap", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-rdynamic", "testdata/nap.c", stub)
	own := compile(t, "nap-own", "-D_GNU_SOURCE", "-DOWN", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-rdynamic", "testdata/nap.c", stub)
	for _, c := range []struct {
		name, nap string
		args      []string
		sleeps    bool
	}{
		{"late yields", "60000000", []string{"1", "1", "500", "elsewhere", "late"}, true},
		{"late yields, three threads", "60000000", []string{"3", "2", "300", "elsewhere", "late"}, true},
		{"late yields, off", "0", []string{"1", "1", "100", "elsewhere", "late"}, false},
		{"own yields", "60000000", []string{"1", "2", "100", "elsewhere"}, false},
		{"own late yields", "60000000", []string{"1", "2", "500", "elsewhere", "late"}, true},
		{"one thread, one queue", "60000000", []string{"1", "1", "3000"}, true},
		{"one thread, three queues", "60000000", []string{"1", "3", "3000"}, true},
		{"three threads", "60000000", []string{"3", "2", "300"}, true},
		{"bounded", "100", []string{"1", "1", "500"}, true},
		{"the daemon is elsewhere", "60000000", []string{"1", "1", "100", "elsewhere"}, false},
		{"off", "0", []string{"1", "1", "100"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := startFake(t)
			program, every := prog, "16"
			if strings.HasPrefix(c.name, "own") {
				program, every = own, "1000000000"
			}
			cmd := command(t, f, library(t), append([]string{program}, c.args...)...)
			cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+filepath.Dir(stub), "VRDMA_NAP="+c.nap, "VRDMA_YIELD="+every)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			var slept int
			if _, err := fmt.Sscanf(string(out), "slept %d", &slept); err != nil || slept > 0 != c.sleeps {
				t.Errorf("printed %q (%v), want that it slept: %v", out, err, c.sleeps)
			}
		})
	}
}

// TestPlace: a thread that polls beside the daemon goes to another processor, if it may.
func TestPlace(t *testing.T) {
	stub := compile(t, "libibverbs.so.1", "-shared", "-fPIC", "-Wl,-soname,libibverbs.so.1", "testdata/verbs_stub.c")
	prog := compile(t, "place", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-rdynamic", "testdata/place.c", stub)
	for _, args := range [][]string{{prog}, {prog, "pinned"}} {
		f := startFake(t)
		cmd := command(t, f, library(t), args...)
		cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+filepath.Dir(stub))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
}

// TestSymbolVersions: the library loads wherever glibc is 2.17 or newer.
func TestSymbolVersions(t *testing.T) {
	if _, err := exec.LookPath("objdump"); err != nil {
		t.Skip("no objdump")
	}
	out, err := exec.Command("objdump", "-T", library(t)).Output()
	if err != nil {
		t.Fatal(err)
	}
	needed := regexp.MustCompile(`\*UND\*.*GLIBC_(\d+)\.(\d+)[.\d]*\)? +(\S+)`)
	found := needed.FindAllStringSubmatch(string(out), -1)
	if len(found) == 0 {
		t.Fatal("objdump shows no needed symbols")
	}
	for _, m := range found {
		var minor int
		fmt.Sscan(m[2], &minor)
		if m[1] != "2" || minor > 17 {
			t.Errorf("%s needs GLIBC_%s.%s, want 2.17 or older", m[3], m[1], m[2])
		}
	}
}

// TestMusl: under another C library it says why it cannot work.
func TestMusl(t *testing.T) {
	gcc, err := exec.LookPath("musl-gcc")
	if err != nil {
		t.Skip("no musl-gcc")
	}
	prog := filepath.Join(t.TempDir(), "musl")
	if out, err := exec.Command(gcc, "-o", prog, "-D_GNU_SOURCE", "testdata/musl.c").CombinedOutput(); err != nil {
		t.Skipf("musl-gcc: %v\n%s", err, out)
	}
	cmd := exec.Command(prog)
	cmd.Env = []string{"LD_PRELOAD=" + library(t)}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "needs glibc") {
		t.Errorf("printed %q (%v), want an explanation", out, err)
	}
}
