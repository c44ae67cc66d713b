package harness

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
)

// Root is the repository's top directory.
func Root() string {
	_, file, _, ok := runtime.Caller(0)
	if !ok {
		panic("harness: the binary has no file names; build without -trimpath")
	}
	return filepath.Join(filepath.Dir(file), "..", "..")
}

// Binary is the built vrdma.
func Binary() string { return filepath.Join(Root(), "bin", "vrdma") }

// Library is the built interposer.
func Library() string { return filepath.Join(Root(), "bin", "libvrdma.so") }

// SocketsLibrary is the library that `vrdma run --sockets` loads before Library.
func SocketsLibrary() string { return filepath.Join(Root(), "bin", "libvrdma-sockets.so") }

// raceBinary is the same program with the race detector in it.
func raceBinary() string { return filepath.Join(Root(), "bin", "vrdma-race") }

var (
	build     = sync.OnceValues(func() ([]byte, error) { return alone(exec.Command("make", "build")) })
	buildKube = sync.OnceValues(func() ([]byte, error) { return alone(exec.Command("make", "kube")) })
	buildRace = sync.OnceValues(func() ([]byte, error) {
		cmd := exec.Command("go", "build", "-race", "-o", raceBinary(), "./cmd/vrdma")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
		return alone(cmd)
	})
)

// alone runs a command in the repository while no other test binary does.
func alone(cmd *exec.Cmd) ([]byte, error) {
	// Test packages run as separate processes, so this is a lock file, not a mutex.
	lock, err := os.OpenFile(filepath.Join(os.TempDir(), "vrdma-test-build.lock"), os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o666)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return nil, err
	}
	cmd.Dir = Root()
	return cmd.CombinedOutput()
}

// Build makes bin/vrdma and its libraries, once a test binary. `make integration` has already made them and says so with
// VRDMA_BUILT.
func Build(t testing.TB) {
	t.Helper()
	if os.Getenv("VRDMA_BUILT") != "" {
		return
	}
	if out, err := build(); err != nil {
		t.Fatalf("make build: %v\n%s", err, out)
	}
}

// BuildKube makes bin/vrdma-kube, under the same condition.
func BuildKube(t testing.TB) {
	t.Helper()
	if os.Getenv("VRDMA_BUILT") != "" {
		return
	}
	if out, err := buildKube(); err != nil {
		t.Fatalf("make kube: %v\n%s", err, out)
	}
}
