package packaging

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// loader says whether a library of another architecture loads, and calls what it interposes.
const loader = `
#include <stdio.h>
#include <fcntl.h>
#include <sys/stat.h>
int main(void) { struct stat s; puts(stat("/", &s) == 0 && open("/nonexistent", O_RDONLY) < 0 ? "runs" : "fails"); return 0; }
`

// TestArm64: the cross-built shared objects are for aarch64, export what those of this machine export, need no newer glibc than
// 2.17, and load under an emulator. Long form: the cross-built programs run there, too.
func TestArm64(t *testing.T) {
	const compiler, emulator = "aarch64-linux-gnu-gcc", "qemu-aarch64-static"
	harness.Need(t, compiler, emulator)
	harness.Build(t)
	dir := harness.Directory(t, nil)
	run := func(cmd *exec.Cmd) string {
		t.Helper()
		cmd.Dir = harness.Root()
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", cmd, err, out)
		}
		return string(out)
	}
	libraries := []string{"libvrdma.so", "libvrdma-sockets.so"}
	for _, name := range libraries {
		run(exec.Command("make", "-s", "-f", "shim/shim.mk", "BIN="+dir, "CC="+compiler, filepath.Join(dir, name)))
		ours, theirs := exports(t, filepath.Join(harness.Root(), "bin", name), elf.EM_X86_64), exports(t, filepath.Join(dir, name), elf.EM_AARCH64)
		for _, symbol := range ours {
			if !slices.Contains(theirs, symbol) {
				t.Errorf("%s of aarch64 does not export %s", name, symbol)
			}
		}
	}
	source := filepath.Join(dir, "loader.c")
	if err := os.WriteFile(source, []byte(loader), 0o644); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "loader")
	run(exec.Command(compiler, "-o", program, source))
	for _, name := range libraries {
		out := run(exec.Command(emulator, "-L", "/usr/aarch64-linux-gnu", "-E", "LD_PRELOAD="+filepath.Join(dir, name),
			"-E", "VRDMA_SOCKET="+filepath.Join(dir, "none.sock"), program))
		if !strings.Contains(out, "runs") || strings.Contains(out, "cannot be preloaded") {
			t.Errorf("a program with %s: %s", name, out)
		}
	}
	if !harness.All() {
		return
	}
	run(exec.Command("make", "-s", "build-arm64", "DIST="+dir, "VERSION=v1.0.0"))
	for _, name := range []string{"vrdma", "vrdma-kube"} {
		if out := run(exec.Command(emulator, filepath.Join(dir, "build/arm64", name), "version")); !strings.Contains(out, "linux/arm64") {
			t.Errorf("%s version: %s", name, out)
		}
	}
}

// exports returns the functions that a library defines for others. It fails the test if the library is of another machine, or
// needs a newer glibc than we support.
func exports(t *testing.T, path string, machine elf.Machine) (names []string) {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Machine != machine {
		t.Errorf("%s is for %v, want %v", path, f.Machine, machine)
	}
	needs, err := f.ImportedSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range needs {
		rest, found := strings.CutPrefix(s.Version, "GLIBC_2.")
		minor, _, _ := strings.Cut(rest, ".")
		if n, err := strconv.Atoi(minor); found && (err != nil || n > 17) {
			t.Errorf("%s needs %s of %s, and we support 2.17", path, s.Name, s.Version)
		}
	}
	symbols, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF && elf.ST_BIND(s.Info) != elf.STB_LOCAL {
			names = append(names, s.Name)
		}
	}
	return names
}
