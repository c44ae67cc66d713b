package guest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// Home is the directory of our programs in a guest whose initramfs is Ours.
const Home = "/opt/vrdma"

// Ours is the guests' initramfs with our programs, and with what more adds.
func Ours(t testing.TB, more ...func(root string)) string {
	t.Helper()
	harness.Build(t)
	harness.Need(t, "cpio")
	dir := harness.Directory(t, nil)
	root := filepath.Join(dir, "root", Home)
	if err := os.MkdirAll(root, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, add := range more {
		add(filepath.Join(dir, "root"))
	}
	bin := filepath.Dir(harness.Binary())
	script := fmt.Sprintf(`set -e; cp %[1]s/vrdma %[1]s/libvrdma.so %[1]s/libvrdma-sockets.so %[2]s; cd %[3]s/root
		for lib in $(ldd %[1]s/libvrdma.so | grep -oE ' /lib/[^ ]+'); do mkdir -p usr$(dirname $lib); cp -L $lib usr$lib; done
		{ cat %[4]s/initramfs; find . | cpio --quiet -o -H newc -R 0:0; } >%[3]s/initramfs`, bin, root, dir, Image(t))
	if out, err := exec.Command("sh", "-c", script).CombinedOutput(); err != nil {
		t.Fatalf("add to the initramfs: %v\n%s", err, out)
	}
	return filepath.Join(dir, "initramfs")
}
