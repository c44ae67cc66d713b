package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"vrdma/internal/launch"
)

// installLibraries puts the shared objects where programs find them: beside the socket,
// so that one mounted directory is all that a container needs.
func installLibraries(place launch.Place, dirMode fs.FileMode) error {
	// Claim has removed what was there. Whatever is there now, a link of somebody else's
	// for instance, is not ours to write to.
	if err := os.Mkdir(place.Dir(), dirMode); err != nil {
		return fmt.Errorf("cannot make the directory for programs: %w; choose another place with --socket", err)
	}
	// The directory above decides who gets here; umask must not.
	if err := os.Chmod(place.Dir(), dirMode); err != nil {
		return err
	}
	for _, to := range []string{place.Library(), place.Sockets()} {
		source, err := findLibrary(filepath.Base(to))
		if err != nil {
			return err
		}
		content, err := os.ReadFile(source)
		if err != nil {
			return lacks("cannot read %s: %w", source, err)
		}
		if err := errors.Join(os.WriteFile(to, content, 0o755), os.Chmod(to, 0o755)); err != nil {
			return fmt.Errorf("cannot install %s: %w", filepath.Base(to), err)
		}
	}
	return nil
}

// warnNoExec says that programs cannot load the shared object from where it is. Debian's /run is such a place.
func warnNoExec(place launch.Place, log *slog.Logger) {
	var fs unix.Statfs_t
	if err := unix.Statfs(place.Dir(), &fs); err != nil || fs.Flags&unix.ST_NOEXEC == 0 {
		return
	}
	log.Warn("programs cannot load libvrdma.so from the socket's directory, nor can containers: its file system is mounted noexec; Go programs with package verbs can use the device",
		"directory", place.Dir(), "advice", "choose another place with --socket, /var/lib/vrdma/vrdma.sock for instance, or have it mounted with exec")
}

// findLibrary looks beside the one that VRDMA_LIB names, beside the binary, and where
// packages put it.
func findLibrary(name string) (string, error) {
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
	return "", lacks("%s is missing: looked for %s; run make build, or name libvrdma.so with VRDMA_LIB and have it beside", name, candidates)
}
