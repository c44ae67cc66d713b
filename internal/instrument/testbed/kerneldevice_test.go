package testbed

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestKernelDevice(t *testing.T) {
	sysfs := t.TempDir()
	dir := filepath.Join(sysfs, "class/infiniband/rxe_kernel/ports/1/gids")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for index, gid := range []string{"fe80:0000:0000:0000:5054:00ff:fe77:0002", "0000:0000:0000:0000:0000:ffff:0a4d:0002", "0000:0000:0000:0000:0000:0000:0000:0000"} {
		if err := os.WriteFile(filepath.Join(dir, string(rune('0'+index))), []byte(gid+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := FindKernelDevice("rxe_kernel", sysfs)
	if err != nil || got.GID != 1 || got.ip.String() != "10.77.0.2" {
		t.Errorf("got %+v, %v, want index 1, 10.77.0.2", got, err)
	}
	for _, name := range []string{"", "rxe9"} {
		if got, err := FindKernelDevice(name, sysfs); err == nil {
			t.Errorf("%q: got %+v, want an error", name, got)
		}
	}
}

func TestLibraries(t *testing.T) {
	const ldd = "\tlinux-vdso.so.1 (0x0)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x0)\n\t/lib64/ld-linux-x86-64.so.2 (0x0)\n\tliba.so => /opt/liba.so (0x0)\n"
	var got []string
	for _, path := range libraries(ldd) {
		got = append(got, merged(path))
	}
	const want = "usr/lib/x86_64-linux-gnu/libc.so.6 usr/lib64/ld-linux-x86-64.so.2 opt/liba.so"
	if strings.Join(got, " ") != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
