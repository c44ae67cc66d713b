package bench

import (
	"context"
	"embed"
	"fmt"
	"os"
	"path/filepath"
)

//go:embed programs/*.c programs/*.h
var sources embed.FS

// Compile builds the baseline programs in the lab and returns where they are.
func (l *Lab) Compile(ctx context.Context, names ...string) (map[string]string, error) {
	header, err := sources.ReadFile("programs/device.h")
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(l.Dir, "device.h"), header, 0o644); err != nil {
		return nil, err
	}
	programs := make(map[string]string)
	for _, name := range names {
		source, err := sources.ReadFile("programs/" + name + ".c")
		if err != nil {
			return nil, err
		}
		path := filepath.Join(l.Dir, name)
		if err := os.WriteFile(path+".c", source, 0o644); err != nil {
			return nil, err
		}
		if _, err := l.Run(ctx, "gcc", "-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread",
			"-o", path, path+".c", "-Wl,--as-needed", "-lrdmacm", "-libverbs"); err != nil {
			return nil, fmt.Errorf("cannot build %s.c: %w; apt-get install gcc libibverbs-dev librdmacm-dev", name, err)
		}
		programs[name] = path
	}
	return programs, nil
}
