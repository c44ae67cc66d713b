package launch

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/exit"
)

// DirectoryMode returns the mode of directories around a socket: users who may use the socket may search them.
func DirectoryMode(socket fs.FileMode) fs.FileMode {
	dir := fs.FileMode(0o700)
	if socket&0o070 != 0 {
		dir |= 0o050
	}
	if socket&0o007 != 0 {
		dir |= 0o005
	}
	return dir
}

// InstallLibraries copies the shared objects into the socket's directory. A container then needs only this directory.
func InstallLibraries(place Place, dirMode fs.FileMode) error {
	// Claim has removed the old directory. Another user may have put something in its place, a link for instance: Mkdir fails then.
	if err := os.Mkdir(place.Dir(), dirMode); err != nil {
		return fmt.Errorf("cannot make the directory for programs: %w; choose another path with --socket", err)
	}
	// The mode of the directory above limits access, not the umask.
	if err := os.Chmod(place.Dir(), dirMode); err != nil {
		return err
	}
	return ReplaceLibraries(place)
}

// ReplaceLibraries replaces the shared objects in the socket's directory. Programs that have loaded the old ones keep them.
//
// Another user may own the directory around it, or be root of a container that has it: the place of the directory, or of a file
// in it, may be taken by a link. Links are not followed.
func ReplaceLibraries(place Place) error {
	if err := ownDirectory(place.Dir(), os.Geteuid()); err != nil {
		return err
	}
	dir, err := os.OpenRoot(place.Dir())
	if err != nil {
		return err
	}
	defer dir.Close()
	is, err := dir.Lstat(".")
	if now, lerr := os.Lstat(place.Dir()); err != nil || lerr != nil || !os.SameFile(is, now) {
		return fmt.Errorf("%s was replaced at this moment", place.Dir())
	}
	for _, to := range []string{place.Library(), place.Sockets()} {
		source, err := FindLibrary(filepath.Base(to))
		if err != nil {
			return err
		}
		content, err := os.ReadFile(source)
		if err != nil {
			return exit.Lacks("cannot read %s: %w", source, err)
		}
		if err := replaceIn(dir, filepath.Base(to), content); err != nil {
			return fmt.Errorf("cannot install %s: %w", filepath.Base(to), err)
		}
	}
	return nil
}

// replaceIn replaces an executable file in a directory.
func replaceIn(dir *os.Root, name string, content []byte) error {
	part := name + ".part"
	if err := dir.Remove(part); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := dir.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Chmod(0o755), f.Close(), dir.Rename(part, name))
}

// WarnNoExec logs a warning if programs cannot load the shared objects because their file system is mounted noexec, as /run of
// Debian is.
func WarnNoExec(place Place, log *slog.Logger) {
	var fs unix.Statfs_t
	if err := unix.Statfs(place.Dir(), &fs); err != nil || fs.Flags&unix.ST_NOEXEC == 0 {
		return
	}
	log.Warn("programs cannot load libvrdma.so from the socket's directory, nor can containers: its file system is mounted noexec; Go programs with package verbs can use the device",
		"directory", place.Dir(), "advice", "choose another path with --socket, /var/lib/vrdma/vrdma.sock for instance, or mount it with exec")
}

// FindLibrary finds a shared object beside the file in VRDMA_LIB, else beside the program or where packages install it.
func FindLibrary(name string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	dir := filepath.Dir(self)
	candidates := []string{filepath.Join(dir, name), filepath.Join(dir, "..", "lib", "vrdma", name)}
	if given := os.Getenv("VRDMA_LIB"); given != "" {
		candidates = []string{given}
		if filepath.Base(given) != name {
			candidates = []string{filepath.Join(filepath.Dir(given), name)}
		}
	}
	for _, path := range candidates {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", exit.Lacks("%s is missing: looked for %s; run make build, or name libvrdma.so with VRDMA_LIB and put it beside", name, candidates)
}

// Machine returns the directory of QEMU's sockets for a NIC.
func (p Place) Machine(nic string) string {
	if !strings.Contains(nic, "/") {
		nic += "/" + nic
	}
	return filepath.Join(p.Socket+".guests", nic)
}
