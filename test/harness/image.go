package harness

import (
	"path/filepath"
	"testing"
)

// Image returns the root of a small Debian for containers: bullseye, bookworm, trixie; or host, which has podman. It is
// unpacked once a machine. See tools/container-image.
func Image(t testing.TB, suite string) string {
	t.Helper()
	Need(t, "apt-get", "dpkg-deb")
	dir, err := cached("image-"+suite, "container-image", suite)
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "root")
}

// CRIU returns the root directories of a host for containers that has CRIU, for an overlay. See tools/criu-image.
func CRIU(t testing.TB) string {
	t.Helper()
	host := Image(t, "host")
	dir, err := cached("criu", "criu-image")
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "root") + ":" + host
}

// Engines returns the root of a Debian with container engines: older, middle, newer. It is unpacked once a machine. See
// tools/engine-image.
func Engines(t testing.TB, name string) string {
	t.Helper()
	Need(t, "apt-get", "dpkg-deb")
	dir, err := cached("engine-"+name, "engine-image", name)
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "root")
}

// Kubelet returns a directory with Kubernetes' kubelet, kube-apiserver, kube-scheduler, kube-controller-manager and
// kubectl. They are built once a machine, in minutes. See tools/kubelet.
func Kubelet(t testing.TB) string {
	t.Helper()
	dir, err := cached("kubelet", "kubelet")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// Multus returns Multus' CNI plugin, which is built once a machine, in minutes. See tools/multus.
func Multus(t testing.TB) string {
	t.Helper()
	dir, err := cached("multus", "multus")
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "multus")
}
