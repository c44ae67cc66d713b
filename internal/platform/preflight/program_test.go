package preflight

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// image returns the smallest ELF file with a class, a machine, and optionally a loader.
func image(class elf.Class, machine elf.Machine, loader string) []byte {
	var out bytes.Buffer
	ident := [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(class), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)}
	if class == elf.ELFCLASS32 {
		binary.Write(&out, binary.LittleEndian, elf.Header32{
			Ident: ident, Type: uint16(elf.ET_EXEC), Machine: uint16(machine), Version: 1, Ehsize: 52, Phentsize: 32, Shentsize: 40,
		})
		return out.Bytes()
	}
	head := elf.Header64{
		Ident: ident, Type: uint16(elf.ET_EXEC), Machine: uint16(machine), Version: 1,
		Ehsize: 64, Phentsize: 56, Shentsize: 64,
	}
	if loader != "" {
		head.Phoff, head.Phnum = 64, 1
	}
	binary.Write(&out, binary.LittleEndian, head)
	if loader != "" {
		name := append([]byte(loader), 0)
		binary.Write(&out, binary.LittleEndian, elf.Prog64{
			Type: uint32(elf.PT_INTERP), Off: 64 + 56, Filesz: uint64(len(name)), Memsz: uint64(len(name)),
		})
		out.Write(name)
	}
	return out.Bytes()
}

func write(t *testing.T, name string, content []byte, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, content, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestProgram(t *testing.T) {
	const glibc = "/lib64/ld-linux-x86-64.so.2"
	here := machines[runtime.GOARCH]
	other := elf.EM_AARCH64
	if here == other {
		other = elf.EM_X86_64
	}
	static := write(t, "static", image(elf.ELFCLASS64, here, ""), 0o755)
	me := identity{os.Getuid(), os.Getgid()}
	stranger := identity{os.Getuid() + 1, os.Getgid() + 1}

	tests := []struct {
		name    string
		content []byte
		mode    os.FileMode
		who     identity
		want    string
	}{
		{"dynamic", image(elf.ELFCLASS64, here, glibc), 0o755, me, ""},
		{"static", image(elf.ELFCLASS64, here, ""), 0o755, me, "is statically linked"},
		{"musl", image(elf.ELFCLASS64, here, "/lib/ld-musl-x86_64.so.1"), 0o755, me, "is linked with musl"},
		{"32 bit", image(elf.ELFCLASS32, elf.EM_386, ""), 0o755, me, "is built for EM_386"},
		{"another machine", image(elf.ELFCLASS64, other, glibc), 0o755, me, "is built for " + other.String()},
		{"setuid", image(elf.ELFCLASS64, here, glibc), 0o755 | os.ModeSetuid, stranger, "is setuid"},
		{"setuid to ourselves", image(elf.ELFCLASS64, here, glibc), 0o755 | os.ModeSetuid, me, ""},
		{"setgid", image(elf.ELFCLASS64, here, glibc), 0o755 | os.ModeSetgid, stranger, "is setgid"},
		{"script of a static shell", []byte("#!" + static + " -e\n"), 0o755, me, "is statically linked"},
		{"script of a shell", []byte("#! /bin/sh\necho\n"), 0o755, me, ""},
		{"script through env", []byte("#!/usr/bin/env -S A=b sh\n"), 0o755, me, ""},
		{"setuid script", []byte("#!/bin/sh\n"), 0o755 | os.ModeSetuid, stranger, ""},
		{"script without interpreter", []byte("#!\n"), 0o755, me, ""},
		{"empty", nil, 0o755, me, ""},
		{"broken", []byte("\x7fELF"), 0o755, me, ""},
		{"text", []byte("echo hello\n"), 0o755, me, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			path := write(t, "program", test.content, test.mode)
			found := program(path, test.who, 4)
			fatal, bad := Fatal(found)
			if bad != (test.want != "") || !strings.Contains(fatal.What, test.want) {
				t.Errorf("found %q, want %q", found, test.want)
			}
		})
	}
}

func TestScriptThatInterpretsItself(t *testing.T) {
	path := filepath.Join(t.TempDir(), "loop")
	if err := os.WriteFile(path, []byte("#!"+path+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if found := Program(path); len(found) != 0 {
		t.Errorf("found %q, want nothing: the kernel will say ELOOP", found)
	}
}

// Programs of this machine's compilers.
func TestCompiledPrograms(t *testing.T) {
	cc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("no gcc")
	}
	dir := t.TempDir()
	source := filepath.Join(dir, "main.c")
	if err := os.WriteFile(source, []byte("int main(void) { return 0; }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		flag, want string
	}{
		{"-no-pie", ""}, {"-pie", ""}, {"-static", "is statically linked"}, {"-static-pie", "is statically linked"},
	}
	for _, test := range tests {
		t.Run(test.flag, func(t *testing.T) {
			path := filepath.Join(dir, "program"+test.flag)
			if out, err := exec.Command(cc, "-fPIE", test.flag, "-o", path, source).CombinedOutput(); err != nil {
				t.Skipf("gcc %s: %v: %s", test.flag, err, out)
			}
			fatal, _ := Fatal(Program(path))
			if (fatal.What == "") != (test.want == "") || !strings.Contains(fatal.What, test.want) {
				t.Errorf("found %q, want %q", fatal.What, test.want)
			}
		})
	}
}

func TestStaticGoBinary(t *testing.T) {
	tool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("no go")
	}
	dir := t.TempDir()
	source := filepath.Join(dir, "main.go")
	if err := os.WriteFile(source, []byte("package main\n\nfunc main() {}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "program")
	build := exec.Command(tool, "build", "-o", path, source)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	fatal, _ := Fatal(Program(path))
	if !strings.Contains(fatal.What, "static Go binary") {
		t.Errorf("found %q", fatal.What)
	}
}

func TestFind(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	for name, mode := range map[string]os.FileMode{"good": 0o755, "plain": 0o644} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		name, program string
		status        int
	}{
		{"on PATH", "good", 0},
		{"by path", filepath.Join(dir, "good"), 0},
		{"nowhere", "missing", 127},
		{"nowhere by path", filepath.Join(dir, "missing"), 127},
		{"not executable", filepath.Join(dir, "plain"), 126},
		{"directory", dir, 126},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, status, err := Find(test.program)
			if status != test.status || (err == nil) != (status == 0) {
				t.Errorf("status %d, %v, want %d", status, err, test.status)
			}
		})
	}
}
