package testbed

import (
	"context"
	"embed"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

//go:embed programs/*.c programs/*.h
var sources embed.FS

// Compile builds programs of programs/ in the lab and returns their paths.
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

// Numbers runs a program that prints n numbers.
func (l *Lab) Numbers(ctx context.Context, n int, argv ...string) ([]float64, error) {
	out, err := l.Run(ctx, argv...)
	if err != nil {
		return nil, err
	}
	return ParseNumbers(argv[0], out, n)
}

// ParseNumbers reads the n numbers that a program printed.
func ParseNumbers(program, out string, n int) (numbers []float64, err error) {
	words := strings.Fields(out)
	if len(words) != n {
		return nil, fmt.Errorf("%s printed %q, want %d numbers", program, out, n)
	}
	numbers = make([]float64, n)
	for i, word := range words {
		if numbers[i], err = strconv.ParseFloat(word, 64); err != nil {
			return nil, fmt.Errorf("%s printed %q, want %d numbers", program, out, n)
		}
	}
	return numbers, nil
}

//go:embed programs/transfer.mpi
var transferSource string

// TransferProgram returns the path of the MPI program, and builds it if necessary.
func (l *Lab) TransferProgram(ctx context.Context) (program string, err error) {
	program = filepath.Join(l.Dir, "transfer")
	if _, err := os.Stat(program); err == nil {
		return program, nil
	}
	if err := os.WriteFile(program+".c", []byte(transferSource), 0o644); err != nil {
		return "", err
	}
	if _, err := l.Run(ctx, "mpicc", "-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-o", program, program+".c"); err != nil {
		return "", fmt.Errorf("cannot build the MPI program: %w; apt-get install libopenmpi-dev gcc", err)
	}
	return program, nil
}
