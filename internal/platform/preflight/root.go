package preflight

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// A container's root file system is not trusted: links are resolved inside it, and only plain files are read.

// Root checks the root file system of a container that gets a NIC by mounts, and programs in it: paths, or
// names in the container's PATH. Without programs it checks the shell.
func Root(root string, programs ...string) ([]Finding, error) {
	dir, err := os.Open(root)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	if info, err := dir.Stat(); err != nil || !info.IsDir() {
		return nil, fmt.Errorf("%s is not a directory: give the root of a file system", root)
	}
	if len(programs) == 0 {
		programs = []string{"/bin/sh"}
	}
	var found []Finding
	for _, name := range programs {
		found = append(found, programIn(dir, name))
	}
	for _, f := range []*Finding{provider(dir), ownPreload(dir)} {
		if f != nil {
			found = append(found, *f)
		}
	}
	return clean(found), nil
}

// Start checks the root file system of a container that is about to start, and its first program. It does not report a missing
// program, which the engine reports, nor a missing shell.
func Start(root, program string) ([]Finding, error) {
	dir, err := os.Open(root)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	var found []Finding
	for _, name := range []string{program, "/bin/sh"} {
		if name == "" {
			continue
		}
		if at := findIn(dir, name); at != "" {
			found = append(found, programIn(dir, at))
			break
		}
	}
	if f := provider(dir); f != nil && len(clean(found)) == 0 {
		found = append(found, *f) // with another C library or architecture the provider does not matter
	}
	return clean(found), nil
}

// findIn returns the path of a program in a root file system; "" if it is missing.
func findIn(root *os.File, name string) string {
	for _, at := range candidates(name) {
		if f, err := OpenIn(root, at); err == nil {
			f.Close()
			return at
		}
	}
	return ""
}

// clean removes empty and repeated findings.
func clean(list []Finding) (out []Finding) {
	seen := map[Finding]bool{{}: true}
	for _, f := range list {
		if !seen[f] {
			seen[f] = true
			out = append(out, f)
		}
	}
	return out
}

// searchPath is the usual PATH of containers.
var searchPath = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// candidates returns the possible paths of a program.
func candidates(name string) (out []string) {
	if strings.Contains(name, "/") {
		return []string{name}
	}
	for _, dir := range searchPath {
		out = append(out, path.Join(dir, name))
	}
	return out
}

// programIn checks a program in a root file system. Setuid programs work there.
func programIn(root *os.File, name string) Finding {
	for _, at := range candidates(name) {
		f, err := OpenIn(root, at)
		if err != nil {
			continue
		}
		defer f.Close()
		head := make([]byte, len(elf.ELFMAG))
		if _, err := io.ReadFull(f, head); err != nil || !bytes.Equal(head, []byte(elf.ELFMAG)) {
			return Finding{} // a script: its interpreter is not checked
		}
		if found := linked(at, f); found != nil {
			return *found
		}
		return Finding{}
	}
	return Finding{What: fmt.Sprintf("there is no program %s in it", name), Do: "name one that is there; without any the shell is looked at", Fatal: true}
}

// ownPreload reports a non-empty /etc/ld.so.preload, which the mount hides.
func ownPreload(root *os.File) *Finding {
	f, err := OpenIn(root, "/etc/ld.so.preload")
	if err != nil {
		return nil
	}
	defer f.Close()
	text, _ := io.ReadAll(io.LimitReader(f, 4096))
	text = bytes.TrimSpace(text)
	if len(text) == 0 || bytes.Contains(text, []byte("libvrdma.so")) {
		return nil
	}
	return &Finding{
		What: fmt.Sprintf("it has an /etc/ld.so.preload of its own (%q)", text),
		Do:   "with --device vrdma.io/nic=… and vrdma oci-runtime both are loaded; with the mounts of vrdma nic args alone what it names is not: set LD_PRELOAD to that in the container",
	}
}

// OpenIn opens a plain file of a root file system, for reading. It opens nothing else, because opening a device can have an
// effect: an image may contain the node of a watchdog, which would restart the machine.
func OpenIn(root *os.File, name string) (*os.File, error) { return openAs(root, name, unix.S_IFREG) }

// openAs opens a file of a root file system if it has a type, S_IFREG or S_IFDIR.
func openAs(root *os.File, name string, kind uint32) (*os.File, error) {
	at, err := unix.Openat2(int(root.Fd()), name, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(at)
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil || st.Mode&unix.S_IFMT != kind {
		return nil, fmt.Errorf("%s has another type (mode %o)", name, st.Mode)
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", at), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// A tree is a root file system as an fs.FS of directories and plain files.
type tree struct{ root *os.File }

// Open implements fs.FS.
func (t tree) Open(name string) (fs.File, error) {
	f, err := openAs(t.root, name, unix.S_IFDIR)
	if err != nil {
		f, err = OpenIn(t.root, name)
	}
	if err != nil {
		return nil, err
	}
	return f, nil
}
