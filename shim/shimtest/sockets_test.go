package shimtest

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// socketsLibrary builds libvrdma-sockets.so as shim.mk does, with extra flags.
func socketsLibrary(t *testing.T, extra ...string) string {
	t.Helper()
	sources, err := filepath.Glob("../sockets/*.c")
	if err != nil || len(sources) == 0 {
		t.Fatalf("no sources: %v", err)
	}
	args := strings.Fields("-std=c11 -D_GNU_SOURCE -U_FORTIFY_SOURCE -O2 -g -fPIC -shared -Wall -Wextra -Werror" +
		" -Wno-nonnull-compare -fvisibility=hidden -fno-strict-aliasing")
	args = append(append(append(args, extra...), sources...), "../real.c")
	args = append(args, strings.Fields("-Wl,--no-as-needed -l:libdl.so.2 -l:libpthread.so.0")...)
	return compile(t, "libvrdma-sockets"+strings.Join(extra, "")+".so", args...)
}

// TestSocketsOldLibc: the library asks of libc what glibc 2.17 has, so that it loads wherever
// libvrdma.so does. A function that moved into libc later has a newer version there.
func TestSocketsOldLibc(t *testing.T) {
	f, err := elf.Open(socketsLibrary(t))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.ImportedSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range symbols {
		var minor int
		if n, _ := fmt.Sscanf(s.Version, "GLIBC_2.%d", &minor); n == 1 && minor > 17 {
			t.Errorf("%s is that of %s, want 2.17 at most", s.Name, s.Version)
		}
	}
}

// sanitizers are gcc's libraries that have to be loaded before a sanitized one.
func sanitizers(t *testing.T) (paths []string) {
	t.Helper()
	for _, name := range []string{"libasan.so", "libubsan.so"} {
		path, err := exec.Command("gcc", "-print-file-name="+name).Output()
		if err != nil || !filepath.IsAbs(strings.TrimSpace(string(path))) {
			t.Fatalf("no %s: %v", name, err)
		}
		paths = append(paths, strings.TrimSpace(string(path)))
	}
	return paths
}

var sanitizerOptions = []string{"ASAN_OPTIONS=detect_leaks=0", "UBSAN_OPTIONS=print_stacktrace=1"}

func sanitizedSockets(t *testing.T) string {
	t.Helper()
	return socketsLibrary(t, "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer")
}

// TestSockets runs a program that expects of sockets what the kernel gives, over the
// kernel's own, and over a stub of rsockets' preload library with ours before it. The
// program is test/testdata/sockets.c, which runs over the real one too (vrdma.dev/vrdma/test/sockets).
func TestSockets(t *testing.T) {
	const source = "../../test/testdata/sockets.c"
	flags := strings.Fields("-std=gnu11 -D_GNU_SOURCE -O1 -g -Wall -Wextra -Werror -pthread")
	bin := compile(t, "sockets", append(flags, source)...)
	fortified := compile(t, "sockets-fortified", append(flags, "-O2", "-D_FORTIFY_SOURCE=2", source)...)
	stub := compile(t, "rspreload.so", append(flags, "-fPIC", "-shared", "testdata/rspreload_stub.c")...)
	sanitized := append(sanitizers(t), sanitizedSockets(t))
	for _, c := range []struct {
		name, bin string
		preload   []string
	}{
		{"kernel", bin, nil},
		{"stub", bin, []string{socketsLibrary(t), stub}},
		{"fortified", fortified, []string{socketsLibrary(t), stub}},
		{"sanitized", bin, append(sanitized, stub)},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := command(t, startFake(t), strings.Join(c.preload, ":"), c.bin)
			if c.name == "sanitized" {
				cmd.Env = append(cmd.Env, sanitizerOptions...)
			}
			out, err := cmd.CombinedOutput()
			if err != nil || strings.Count(string(out), "ok ") != 13 {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// TestSocketsCount: the library counts in the memory that VRDMA_COUNT names, and nowhere
// else: the number of a process may be that of another one by now, or in another namespace.
func TestSocketsCount(t *testing.T) {
	const size, udp = 56, 4 * 8 // of struct counts, and the place of its member
	const sealed = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	stub := compile(t, "rspreload.so", "-std=gnu11", "-D_GNU_SOURCE", "-fPIC", "-shared", "testdata/rspreload_stub.c")
	for _, c := range []struct {
		name  string
		size  int
		seals int // -1: an ordinary file
		want  byte
	}{
		{"ours", size, sealed, 1},
		{"larger", 2 * size, sealed, 0},
		{"empty", 0, sealed, 0},
		{"not sealed", size, 0, 0},
		{"ordinary file", size, -1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := countFile(t, c.size, c.seals)
			// A UDP socket is counted.
			cmd := command(t, startFake(t), socketsLibrary(t)+":"+stub, "bash", "-c", "exec 3<>/dev/udp/127.0.0.1/9")
			cmd.Env = append(cmd.Env, fmt.Sprintf("VRDMA_COUNT=/proc/%d/fd/%d", os.Getpid(), f.Fd()))
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			want := make([]byte, c.size)
			if c.want != 0 {
				want[udp] = c.want
			}
			got := make([]byte, c.size)
			if _, err := f.ReadAt(got, 0); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("the memory is %x, want %x", got, want)
			}
		})
	}
}

// countFile is memory with those seals, or an ordinary file.
func countFile(t *testing.T, size, seals int) *os.File {
	t.Helper()
	var f *os.File
	var err error
	if seals < 0 {
		f, err = os.Create(filepath.Join(t.TempDir(), "file"))
	} else {
		var fd int
		fd, err = unix.MemfdCreate("count", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		f = os.NewFile(uintptr(fd), "count")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(int64(size)); err != nil {
		t.Fatal(err)
	}
	if seals > 0 {
		if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
			t.Fatal(err)
		}
	}
	return f
}
