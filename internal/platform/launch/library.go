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
func ReplaceLibraries(place Place) error {
	for _, to := range []string{place.Library(), place.Sockets()} {
		source, err := FindLibrary(filepath.Base(to))
		if err != nil {
			return err
		}
		content, err := os.ReadFile(source)
		if err != nil {
			return exit.Lacks("cannot read %s: %w", source, err)
		}
		part := to + ".part"
		if err := errors.Join(os.WriteFile(part, content, 0o755), os.Chmod(part, 0o755), os.Rename(part, to)); err != nil {
			return fmt.Errorf("cannot install %s: %w", filepath.Base(to), err)
		}
	}
	return nil
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
