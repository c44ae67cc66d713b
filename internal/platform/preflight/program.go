package preflight

import (
	"bufio"
	"bytes"
	"debug/buildinfo"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Find returns the path of a program, as a shell finds it. The status is a shell's too: 127 if there
// is none, 126 if it cannot be executed.
func Find(name string) (path string, status int, err error) {
	path, err = exec.LookPath(name)
	switch {
	case err == nil:
		return path, 0, nil
	case errors.Is(err, exec.ErrDot):
		return path, 127, fmt.Errorf("%s is only in the current directory: write ./%s", name, name)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EISDIR):
		return "", 126, fmt.Errorf("%s cannot be executed: permission denied (is it a directory, or does it lack chmod +x?)", name)
	}
	return "", 127, fmt.Errorf("program %q not found: check the spelling, or install it", name)
}

// An identity is the user and group that the kernel compares with a file's owner, to decide whether the
// loader may trust the environment.
type identity struct{ uid, gid int }

// Program checks the file that is going to be executed, and for a script its interpreter.
func Program(path string) []Finding {
	return program(path, identity{os.Geteuid(), os.Getegid()}, 4)
}

func program(path string, who identity, depth int) []Finding {
	file, err := os.Open(path)
	if err != nil {
		return nil // a file can be executable without being readable
	}
	defer file.Close()
	head := make([]byte, 256)
	n, err := io.ReadFull(file, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	head = head[:n]
	if bytes.HasPrefix(head, []byte("#!")) {
		// The kernel ignores setuid on scripts.
		if next := interpreter(head); next != "" && depth > 0 {
			return program(next, who, depth-1)
		}
		return nil
	}
	if f := privileged(path, file, who); f != nil {
		return []Finding{*f}
	}
	if bytes.HasPrefix(head, []byte(elf.ELFMAG)) {
		if f := linked(path, file); f != nil {
			return []Finding{*f}
		}
		return nil
	}
	if depth > 0 && path != Shell { // a script without #!, which execvp and shells run with the shell
		return program(Shell, who, depth-1)
	}
	return nil
}

// Shell runs files that the kernel cannot execute, as execvp does.
const Shell = "/bin/sh"

// interpreter returns the program in a script's first line; after env, the program that env finds.
func interpreter(head []byte) string {
	line, err := bufio.NewReader(bytes.NewReader(head[2:])).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return ""
	}
	words := strings.Fields(line)
	if len(words) == 0 {
		return ""
	}
	if filepath.Base(words[0]) != "env" {
		return words[0]
	}
	for _, word := range words[1:] {
		if strings.HasPrefix(word, "-") || strings.Contains(word, "=") {
			continue
		}
		if path, _, err := Find(word); err == nil {
			return path
		}
		return ""
	}
	return words[0]
}

// privileged finds privileges of the file that make the loader ignore LD_PRELOAD.
func privileged(path string, file *os.File, who identity) *Finding {
	info, err := file.Stat()
	if err != nil {
		return nil
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	do := fmt.Sprintf("the loader ignores LD_PRELOAD for it; run a copy without the privilege (cp %s /tmp/), or run it as a user who needs none", path)
	if behind, ok := behind(path); ok {
		do = "the loader ignores LD_PRELOAD for it; " + behind
	}
	switch {
	case info.Mode()&fs.ModeSetuid != 0 && int(stat.Uid) != who.uid:
		return &Finding{What: path + " is setuid", Do: do, Fatal: true}
	case info.Mode()&fs.ModeSetgid != 0 && int(stat.Gid) != who.gid:
		return &Finding{What: path + " is setgid", Do: do, Fatal: true}
	}
	// For root the kernel ignores file capabilities here.
	if n, err := unix.Fgetxattr(int(file.Fd()), "security.capability", nil); err == nil && n > 0 && who.uid != 0 {
		return &Finding{What: path + " has file capabilities", Do: do, Fatal: true}
	}
	return nil
}

var machines = map[string]elf.Machine{
	"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64, "riscv64": elf.EM_RISCV,
	"ppc64le": elf.EM_PPC64, "s390x": elf.EM_S390, "loong64": elf.EM_LOONGARCH,
}

// linked finds why the loader cannot load libvrdma.so into an ELF file.
func linked(path string, file *os.File) *Finding {
	image, err := elf.NewFile(file)
	if err != nil {
		return nil // the kernel's error is better
	}
	if image.Class != elf.ELFCLASS64 || image.Machine != machines[runtime.GOARCH] {
		return &Finding{
			What:  fmt.Sprintf("%s is built for %s (%s)", path, image.Machine, image.Class),
			Do:    fmt.Sprintf("libvrdma.so is %s only; use a build for this machine", runtime.GOARCH),
			Fatal: true,
		}
	}
	loader := loaderOf(image)
	switch {
	case loader == "" && ownVerbs(file):
		return nil
	case loader == "" && image.Section(".go.buildinfo") != nil:
		return &Finding{
			What:  path + " is a static Go binary",
			Do:    "it makes its own system calls and loads no library, so it sees neither the device nor run --sockets; use package vrdma.dev/vrdma/verbs, or build it with cgo (and, for the device, libibverbs)",
			Fatal: true,
		}
	case loader == "":
		return &Finding{
			What:  path + " is statically linked",
			Do:    "LD_PRELOAD does nothing for it; link it dynamically (without -static)",
			Fatal: true,
		}
	case strings.Contains(filepath.Base(loader), "ld-musl"):
		return &Finding{
			What:  path + " is linked with musl (" + loader + ")",
			Do:    "libvrdma.so needs glibc; use a build for a glibc distribution such as Debian",
			Fatal: true,
		}
	}
	return nil
}

// ownVerbs reports whether a Go binary contains this module: package verbs needs no library, only the
// environment.
func ownVerbs(file *os.File) bool {
	info, err := buildinfo.Read(&limited{file, mostSearched})
	if err != nil {
		return false
	}
	// Written so that tools/module-path finds it.
	module := strings.TrimSuffix("vrdma.dev/vrdma/verbs", "/verbs")
	return info.Main.Path == module || slices.ContainsFunc(info.Deps, func(d *debug.Module) bool { return d.Path == module })
}

// mostSearched bounds how much of a program is read to find out how it was built. A hostile file may be sparse and endless.
const mostSearched = 256 << 20

// limited reads at most left bytes of a file.
type limited struct {
	file io.ReaderAt
	left int
}

// ReadAt implements io.ReaderAt.
func (l *limited) ReadAt(b []byte, off int64) (int, error) {
	if l.left -= len(b); l.left < 0 {
		return 0, errors.New("the file is too large")
	}
	return l.file.ReadAt(b, off)
}

// loaderOf returns the dynamic loader of an image, or "".
func loaderOf(image *elf.File) string {
	for _, segment := range image.Progs {
		if segment.Type != elf.PT_INTERP {
			continue
		}
		name := make([]byte, min(segment.Filesz, 4096))
		if _, err := segment.ReadAt(name, 0); err != nil {
			return "?"
		}
		return string(bytes.TrimRight(name, "\x00"))
	}
	return ""
}
