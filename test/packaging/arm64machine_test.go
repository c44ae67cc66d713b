package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// arm64Initramfs puts the package, rdma-core's suite and init into a copy of the root, and makes an initramfs of it. $1: a directory,
// $2: the root, $3: the package, $4: this directory.
const arm64Initramfs = `
set -e
cp -a "$2" "$1/root"
dpkg-deb -x "$3" "$1/root"
install -m 755 "$4/testdata/arm64/init" "$1/root/init"
mkdir -p "$1/root/suite/tests"
cp /usr/share/doc/rdma-core/tests/*.py* "$1/root/suite/tests/"
gunzip "$1"/root/suite/tests/*.gz
cp "$4/../pyverbs/run.py" "$1/root/suite/"
printf 'tests.test_%s*\n' mlx5 efa >"$1/root/suite/excluded.txt" # other devices: they skip on every host
cd "$1/root"
find . | LC_ALL=C sort | cpio --quiet -o -H newc -R 0:0 >../initramfs
`

var (
	arm64Pair  = regexp.MustCompile(`(?m)^=== pair (\S+): (\d+) (\d+)\r?$`)
	arm64Suite = regexp.MustCompile(`(?m)^RESULT\t(\w+)\t(\S+)\t(.*)$`)
)

// arm64Races do not wait for their completions before they ask whether these are there. They may fail where a moment is long.
var arm64Races = []string{"tests.test_cq.CQTest.test_resize_cq"}

// TestArm64Machine: the package for arm64 in a machine of that architecture, emulated, with Debian's kernel: rdma-core's examples,
// perftest and rping exchange data with a daemon there, and rdma-core's suite passes as it does here. Long form only. The emulator runs
// the machine's processors as threads of this one, so on x86-64 it does not show weaker memory orders: package armcheck does.
func TestArm64Machine(t *testing.T) {
	if !harness.All() {
		return
	}
	harness.Need(t, "aarch64-linux-gnu-gcc", "mmdebstrap", "cpio", "dpkg-deb", "/usr/share/doc/rdma-core/tests")
	dir, debian := harness.Directory(t, nil), harness.Arm64(t)
	build := exec.Command("make", "-s", "package-arm64", "DIST="+dir, "VERSION=v1.0.0", "PARTS=vrdma", "KINDS=deb")
	build.Dir = harness.Root()
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", build, err, out)
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	pack := exec.Command("sh", "-c", arm64Initramfs, "sh", dir, filepath.Join(debian, "root"), find(t, dir+"/vrdma_*_arm64.deb"), here)
	if out, err := pack.CombinedOutput(); err != nil {
		t.Fatalf("make the machine's initramfs: %v\n%s", err, out)
	}
	p := harness.Spawn(t, exec.Command(filepath.Join(debian, "qemu/usr/bin/qemu-system-aarch64"), "-nodefaults", "-no-user-config",
		"-M", "virt", "-cpu", "cortex-a72", "-smp", "2", "-m", "1536", "-accel", "tcg,thread=multi,tb-size=256", "-display", "none", "-serial", "stdio", "-no-reboot",
		"-kernel", filepath.Join(debian, "vmlinuz"), "-initrd", filepath.Join(dir, "initramfs"), "-append", "console=ttyAMA0 quiet panic=-1 rdinit=/init audit=0"))
	p.Name = "the arm64 machine"
	out := strings.ReplaceAll(p.OK(t, 90*minute), "\r", "")
	for _, want := range []string{"=== machine aarch64", "PORT_ACTIVE", "\nEND\n", "=== daemon: 0"} {
		if !strings.Contains(out, want) {
			t.Errorf("nobody says %q", want)
		}
	}
	pairs := arm64Pair.FindAllStringSubmatch(out, -1)
	if len(pairs) != 15 {
		t.Errorf("%d pairs of programs ran, want 15", len(pairs))
	}
	for _, pair := range pairs {
		if pair[2] != "0" || pair[3] != "0" {
			t.Errorf("%s: the server exits with %s, the client with %s", pair[1], pair[2], pair[3])
		}
	}
	count := map[string]int{}
	for _, r := range arm64Suite.FindAllStringSubmatch(out, -1) {
		if count[r[1]]++; (r[1] == "fail" || r[1] == "error") && !slices.Contains(arm64Races, r[2]) {
			t.Errorf("%s: %s", r[2], r[3])
		}
	}
	text, err := os.ReadFile("../pyverbs/passes.txt")
	if err != nil {
		t.Fatal(err)
	}
	if least, err := strconv.Atoi(strings.TrimSpace(string(text))); err != nil || count["ok"] < least-len(arm64Races) {
		t.Errorf("%d tests of the suite pass, %d do on this machine: %v", count["ok"], least, err)
	}
	t.Logf("pyverbs: %v", count)
	if t.Failed() {
		t.Log(harness.Tail(out, 400))
	}
}
