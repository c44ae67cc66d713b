package harness

import (
	"path/filepath"
	"testing"
)

// Installed is the root of a small Debian with dpkg and apt, in which packages can be installed: bookworm, trixie, testing. It
// is made if this machine has not done so before. See tools/debian-root.
func Installed(t testing.TB, suite string) string {
	t.Helper()
	Need(t, "mmdebstrap")
	dir, err := cached("debian-"+suite, "debian-root", suite)
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "root")
}

// InstalledService is the root of a Debian 12 with systemd and podman, in which packages can be installed. It is made if this
// machine has not done so before.
func InstalledService(t testing.TB) string {
	t.Helper()
	Need(t, "mmdebstrap")
	dir, err := cached("debian-service", "debian-root", "bookworm", "systemd", "dbus", "podman", "crun", "curl")
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "root")
}

// Arm64 is the directory of a Debian for arm64: root, vmlinuz, and qemu, which runs it. It is unpacked if this machine has not done
// so before. See tools/arm64-root.
func Arm64(t testing.TB) string {
	t.Helper()
	dir, err := cached("arm64", "arm64-root")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// Helm is its program, which is built if this machine has not done so before: minutes. See tools/helm.
func Helm(t testing.TB) string {
	t.Helper()
	dir, err := cached("helm", "helm")
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "helm")
}

// Valkey is the directory of its programs with RDMA, which are built if this machine has not done so before: minutes. See tools/valkey.
func Valkey(t testing.TB) string {
	t.Helper()
	Need(t, "apt-get", "make", "gcc")
	dir, err := cached("valkey", "valkey")
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "bin")
}

// Fabtests is the directory of libfabric and its own tests, which are built if this machine has not done so before: minutes. See
// tools/fabtests.
func Fabtests(t testing.TB) string {
	t.Helper()
	Need(t, "apt-get", "make", "gcc", "autoreconf", "libtoolize")
	dir, err := cached("fabtests", "fabtests")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
