package main

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// writeWhole writes a file atomically: after an error the file is as it was.
func writeWhole(path string, mode fs.FileMode, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".vrdma-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails if it was renamed
	err = write(f)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Chmod(f.Name(), mode)
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	return err
}
