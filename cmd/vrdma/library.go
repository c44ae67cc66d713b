package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"vrdma/internal/launch"
)

// libraryName is the shared object, beside the binary and beside the socket.
const libraryName = "libvrdma.so"

// installLibrary puts the shared object where programs find it: beside the socket,
// so that one mounted directory is all that a container needs.
func installLibrary(place launch.Place, dirMode fs.FileMode) error {
	source, err := findLibrary()
	if err != nil {
		return err
	}
	content, err := os.ReadFile(source)
	if err != nil {
		return lacks("cannot read %s: %w", source, err)
	}
	if err := os.MkdirAll(place.Dir(), dirMode); err != nil {
		return err
	}
	// The directory above decides who gets here; umask must not.
	if err := errors.Join(os.WriteFile(place.Library(), content, 0o755), os.Chmod(place.Dir(), dirMode), os.Chmod(place.Library(), 0o755)); err != nil {
		return fmt.Errorf("cannot install %s: %w", libraryName, err)
	}
	return nil
}

// findLibrary looks where VRDMA_LIB says, beside the binary, and where packages
// put it.
func findLibrary() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	dir := filepath.Dir(self)
	candidates := []string{filepath.Join(dir, libraryName), filepath.Join(dir, "..", "lib", "vrdma", libraryName)}
	if given := os.Getenv("VRDMA_LIB"); given != "" {
		candidates = []string{given}
	}
	for _, path := range candidates {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", lacks("%s is missing: looked for %s; run make build, or name it with VRDMA_LIB", libraryName, candidates)
}
