package tenants

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// diskScript starts a daemon with its state on a small file system, kills it, fills the file system or its quota or
// makes it read-only, and starts the daemon again: $1 is vrdma, $2 a directory, $3 full, quota or readonly, $4 an image of btrfs and
// $5 the program btrfs for the quota. The daemon has to serve its NICs in each case.
const diskScript = `
set -e
vrdma=$1 dir=$2/disk how=$3 image=$4 btrfs=$5 pid=
mkdir "$dir"
store=$dir/state/s
trap '[ -z "$pid" ] || kill -9 $pid' EXIT
if [ $how = quota ]; then
	mount -o loop "$image" "$dir"
	"$btrfs" quota enable "$dir"
	"$btrfs" subvolume create "$dir/state"
	"$btrfs" qgroup limit 512k "$dir/state"
else
	mount -t tmpfs -o size=256k store "$dir"
	mkdir "$dir/state"
fi
export VRDMA_SOCKET=$dir.sock
start() {
	"$vrdma" daemon --store "$store" --usage "$dir/state/usage" --network=false --metrics 127.0.0.1:0 2>>"$dir.log" &
	pid=$!
	for i in $(seq 300); do
		if "$vrdma" get nics >"$dir.nics" 2>&1; then return 0; fi
		kill -0 $pid || { pid=; echo "the daemon ended:"; tail -n 5 "$dir.log"; exit 1; }
		sleep 0.1
	done
	echo "the daemon does not answer:"; tail -n 5 "$dir.log"; exit 1
}
crash() { kill -9 $pid; wait $pid 2>/dev/null || true; pid=; }
written() { # a text in the log within 30 s
	for i in $(seq 300); do grep -q "$1" "$dir.log" && return 0; sleep 0.1; done
	echo "the log does not say: $1"; tail -n 5 "$dir.log"; exit 1
}
start
"$vrdma" apply -f - <<Y
apiVersion: vrdma.io/v1
kind: Tenant
metadata: {name: red}
---
apiVersion: vrdma.io/v1
kind: Network
metadata: {name: n, tenant: red}
spec: {subnets: [10.1.0.0/24]}
---
apiVersion: vrdma.io/v1
kind: NIC
metadata: {name: a, tenant: red}
spec: {network: n, address: 10.1.0.1}
Y
for i in $(seq 300); do [ -e "$dir/state/usage" ] && break; sleep 0.1; done
case $how in
full | quota)
	crash
	dd if=/dev/zero of="$dir/state/fill" bs=1k count=10000 2>/dev/null || true
	start; written "usage of tenants cannot be written"
	rm "$dir/state/fill"
	;;
readonly)
	crash
	mount -o remount,ro "$dir"
	start; written "usage of tenants cannot be written"; written "the store is on a read-only file system"
	tenant() { echo '{apiVersion: vrdma.io/v1, kind: Tenant, metadata: {name: blue}}' | "$vrdma" apply -f -; }
	tenant 2>&1 | grep "read-only file system; nothing was changed"
	mount -o remount,rw "$dir"
	tenant
	;;
esac
for i in $(seq 300); do # the daemon answers before it has read its store
	"$vrdma" get nics >"$dir.nics"
	grep -q red "$dir.nics" && break
	sleep 0.1
done
cat "$dir.nics"
grep -q red "$dir.nics"
for i in $(seq 300); do [ -s "$dir/state/usage" ] && [ ! -e "$dir/state/usage.new" ] && break; sleep 0.1; done
kill $pid; wait $pid; pid=
ls "$dir/state"
[ -s "$dir/state/usage" ]
echo served
`

// A daemon serves although it cannot write the tenants' usage, and writes it later. The long form, as root, has a quota, too.
func TestDisk(t *testing.T) {
	harness.Need(t, "unshare", "mount", "dd")
	cases := []string{"full", "readonly"}
	if harness.All() && os.Geteuid() == 0 {
		cases = append(cases, "quota")
	}
	for _, how := range cases {
		t.Run(how, func(t *testing.T) {
			dir := harness.Directory(t, nil)
			argv, image, btrfs := []string{"unshare", "--mount", "--map-root-user"}, filepath.Join(dir, "image"), ""
			var libraries string
			if how == "quota" { // only root may mount it
				programs := harness.Unpacked(t, "btrfs-progs")
				argv, btrfs = argv[:2], filepath.Join(programs, "bin/btrfs")
				libraries = filepath.Join(harness.Unpacked(t, "liblzo2-2"), "lib/x86_64-linux-gnu")
				mkfs := exec.Command("sh", "-ec", `truncate -s 128M "$1" && "$0" -q "$1"`, filepath.Join(programs, "sbin/mkfs.btrfs"), image)
				mkfs.Env = append(os.Environ(), "LD_LIBRARY_PATH="+libraries)
				if out, err := mkfs.CombinedOutput(); err != nil {
					t.Fatalf("mkfs.btrfs: %v\n%s", err, out)
				}
			}
			cmd := exec.Command(argv[0], append(argv[1:], "sh", "-c", diskScript, "sh", harness.Binary(), dir, how, image, btrfs)...)
			cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+libraries)
			out := harness.Spawn(t, cmd).OK(t, 2*minute)
			if !strings.Contains(out, "served") {
				t.Errorf("want that the daemon serves red/a:\n%s", out)
			}
		})
	}
}
