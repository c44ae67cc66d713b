package shimtest

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
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

// TestSockets runs a program that expects of sockets what the kernel gives, over the
// kernel's own, and over a stub of rsockets' preload library with ours before it. The
// program is test/testdata/sockets.c, which runs over the real one too (vrdma/test/sockets).
func TestSockets(t *testing.T) {
	const source = "../../test/testdata/sockets.c"
	flags := strings.Fields("-std=gnu11 -D_GNU_SOURCE -O1 -g -Wall -Wextra -Werror -pthread")
	bin := compile(t, "sockets", append(flags, source)...)
	fortified := compile(t, "sockets-fortified", append(flags, "-O2", "-D_FORTIFY_SOURCE=2", source)...)
	stub := compile(t, "rspreload.so", append(flags, "-fPIC", "-shared", "testdata/rspreload_stub.c")...)
	var sanitizers []string
	for _, name := range []string{"libasan.so", "libubsan.so"} {
		path, err := exec.Command("gcc", "-print-file-name="+name).Output()
		if err != nil || !filepath.IsAbs(strings.TrimSpace(string(path))) {
			t.Fatalf("no %s: %v", name, err)
		}
		sanitizers = append(sanitizers, strings.TrimSpace(string(path)))
	}
	sanitized := socketsLibrary(t, "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer")
	for _, c := range []struct {
		name, bin string
		preload   []string
	}{
		{"kernel", bin, nil},
		{"stub", bin, []string{socketsLibrary(t), stub}},
		{"fortified", fortified, []string{socketsLibrary(t), stub}},
		{"sanitized", bin, append(sanitizers, sanitized, stub)},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := command(t, startFake(t), strings.Join(c.preload, ":"), c.bin)
			if c.name == "sanitized" {
				cmd.Env = append(cmd.Env, "ASAN_OPTIONS=detect_leaks=0", "UBSAN_OPTIONS=print_stacktrace=1")
			}
			out, err := cmd.CombinedOutput()
			if err != nil || strings.Count(string(out), "ok ") != 12 {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
