package tenants

import (
	"os/exec"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// diskScript starts a daemon with its state on a small file system, kills it, fills the file system or
// makes it read-only, and starts the daemon again: $1 is vrdma, $2 a directory, $3 full or readonly. The
// daemon has to serve its NICs in each case. (A store on a read-only file system is refused.)
const diskScript = `
set -e
vrdma=$1 dir=$2/disk how=$3 pid=
mkdir "$dir"
store=$dir/state/s
[ $how = full ] || store=$2/s
trap '[ -z "$pid" ] || kill -9 $pid' EXIT
mount -t tmpfs -o size=256k store "$dir"
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
mkdir "$dir/state"
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
full)
	crash
	dd if=/dev/zero of="$dir/fill" bs=1k 2>/dev/null || true
	start; written "usage of tenants cannot be written"
	rm "$dir/fill"
	;;
readonly)
	crash
	mount -o remount,ro "$dir"
	start; written "usage of tenants cannot be written"
	mount -o remount,rw "$dir"
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

// A daemon serves although it cannot write the tenants' usage, and writes it later.
func TestDisk(t *testing.T) {
	harness.Need(t, "unshare", "mount", "dd")
	for _, how := range []string{"full", "readonly"} {
		t.Run(how, func(t *testing.T) {
			dir := harness.Directory(t, nil)
			cmd := exec.Command("unshare", "--map-root-user", "--mount", "sh", "-c", diskScript, "sh", harness.Binary(), dir, how)
			out := harness.Spawn(t, cmd).OK(t, 2*minute)
			if !strings.Contains(out, "served") {
				t.Errorf("want that the daemon serves red/a:\n%s", out)
			}
		})
	}
}
