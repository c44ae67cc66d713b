package preflight

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/printable"
)

// A hook reads the root file system of an image as root, before the container exists. The image may be hostile.

// opens calls f and returns how often a file was opened meanwhile.
func opens(t *testing.T, path string, f func()) (n int) {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, err := unix.InotifyAddWatch(fd, path, unix.IN_OPEN); err != nil {
		t.Fatal(err)
	}
	f()
	buf := make([]byte, 4096)
	got, err := unix.Read(fd, buf)
	if err == unix.EAGAIN {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	return got / unix.SizeofInotifyEvent // an event of a file has no name
}

// Opening a device can have an effect, so only plain files and directories are opened.
func TestDevicesAreNotOpened(t *testing.T) {
	root := rootFS(t, map[string]string{"usr/lib/x/libibverbs/y": "", "etc/libibverbs.d/x": ""})
	for _, name := range []string{"bin/sh", "usr/lib/x/libibverbs/librxe-rdmav34.so", "etc/libibverbs.d/rxe.driver", "etc/ld.so.preload"} {
		at := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mkfifo(at, 0o644); err != nil { // as a device, and needs no right
			t.Fatal(err)
		}
		look := func() {
			if _, err := Root(root); err != nil {
				t.Error(err)
			}
			if _, err := Start(root, "/bin/sh"); err != nil {
				t.Error(err)
			}
		}
		if n := opens(t, at, look); n != 0 {
			t.Errorf("%s was opened %d times", name, n)
		}
	}
	// The count works.
	if n := opens(t, filepath.Join(root, "etc"), func() {
		f, err := os.Open(filepath.Join(root, "etc"))
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}); n != 1 {
		t.Errorf("a directory that was opened once was opened %d times", n)
	}
}

// Directories of the image that are links to the host's are looked for in the image.
func TestLinkedDirectories(t *testing.T) {
	host := rootFS(t, map[string]string{"lib/x/libibverbs/librxe-rdmav34.so": "", "libibverbs.d/rxe.driver": ""})
	for name, files := range map[string]map[string]string{
		"absolute": {"usr/lib": "->" + filepath.Join(host, "lib"), "etc": "->" + host},
		"upwards":  {"usr/lib": "->../../../../../../../../.." + filepath.Join(host, "lib"), "etc": "->" + host},
	} {
		found, err := Root(rootFS(t, files), "/nothing")
		if err != nil || !strings.Contains(join(found), "rxe provider is not installed") {
			t.Errorf("%s: %v, %v; the host's provider was found", name, found, err)
		}
	}
}

func join(list []Finding) (out string) {
	for _, f := range list {
		out += f.String() + "\n"
	}
	return out
}

// A loader's name may be any bytes, and a finding is printed to an operator's terminal.
func TestFindingsArePrintable(t *testing.T) {
	here := machines[runtime.GOARCH]
	name := "evil\x1b]0;owned\a\u009b2J\u202e"
	root := rootFS(t, map[string]string{"bin/" + name: string(image(elf.ELFCLASS64, here, "/lib/ld-musl\x1b[2J\nall is well"))})
	found, err := Start(root, "/bin/"+name)
	if err != nil || len(found) == 0 {
		t.Fatalf("found %v, %v", found, err)
	}
	for _, f := range found {
		if !printable.Is(f.String()) {
			t.Errorf("%q", f.String())
		}
	}
}

// A static program whose data segment has a terabyte, all of it a hole, does not keep the hook busy.
func TestEndlessProgram(t *testing.T) {
	const size = 1 << 40
	var out bytes.Buffer
	head := elf.Header64{Type: uint16(elf.ET_EXEC), Machine: uint16(machines[runtime.GOARCH]), Version: 1, Phoff: 64, Phnum: 1, Ehsize: 64, Phentsize: 56, Shentsize: 64}
	copy(head.Ident[:], elf.ELFMAG)
	head.Ident[elf.EI_CLASS], head.Ident[elf.EI_DATA], head.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1
	binary.Write(&out, binary.LittleEndian, head)
	binary.Write(&out, binary.LittleEndian, elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_W), Off: 4096, Vaddr: 4096, Filesz: size - 4096, Memsz: size - 4096})
	root := rootFS(t, map[string]string{"bin/sh": out.String()})
	if err := os.Truncate(filepath.Join(root, "bin/sh"), size); err != nil {
		t.Skip(err) // a file system with small files
	}
	found, err := Start(root, "/bin/sh")
	if err != nil || !strings.Contains(join(found), "statically linked") {
		t.Errorf("found %v, %v", found, err)
	}
}
