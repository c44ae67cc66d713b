package vm

import (
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/guest"
	"vrdma.dev/vrdma/test/harness"
)

// addUCX copies UCX's benchmark into a root, with its libraries and the modules that these load.
func addUCX(t *testing.T, root string) {
	t.Helper()
	harness.Need(t, "ucx_perftest")
	const script = `set -e; cd "$1"
		dir=$(dirname $(ldd $(command -v ucx_perftest) | sed -n 's/.* => \(.*libuct\.so[^ ]*\).*/\1/p'))
		mkdir -p usr/bin usr$dir/ucx
		cp $(command -v ucx_perftest) usr/bin/
		cp -L $dir/ucx/libuct_*.so.0 usr$dir/ucx/
		for lib in $(ldd usr/bin/ucx_perftest usr$dir/ucx/*.so.0 | grep -oE ' /[^ ]+' | sort -u); do
			to=.$(echo $lib | sed 's,^/lib,/usr/lib,'); mkdir -p $(dirname $to); [ -e $to ] || cp -L $lib $to
		done`
	if out, err := exec.Command("sh", "-c", script, "sh", root).CombinedOutput(); err != nil {
		t.Fatalf("add UCX: %v\n%s", err, out)
	}
}

// TestUCX runs UCX within a machine, over the device only: the NIC's counters show it.
func TestUCX(t *testing.T) {
	if !harness.All() {
		t.Skip("a machine boots: long form")
	}
	d := start(t, world)
	// UCX registers 60 MB on each side, and its queues are pinned, too.
	m := bootWith(t, d, guest.Ours(t, func(root string) { addUCX(t, root) }), "red/a", "10.1.0.1", 768)
	const port, times = 13337, 100
	for _, tl := range []string{"rc_v", "ud_v"} {
		for _, c := range []struct {
			name, args string
			size       uint64
		}{
			{"tag_lat", "-t tag_lat -s 64", 64}, {"tag_bw", "-t tag_bw -s 65536", 65536},
			{"put_bw", "-t ucp_put_bw -s 65536", 65536}, {"get", "-t ucp_get -s 65536", 65536}, {"am_bw", "-t ucp_am_bw -s 8192", 8192}, {"fadd", "-t ucp_fadd -s 8", 8},
		} {
			t.Run(tl+"/"+c.name, func(t *testing.T) {
				argv := append([]string{"env", "UCX_LOG_LEVEL=warn", "UCX_NET_DEVICES=rxe0:1", "UCX_TLS=" + tl, "VRDMA_SOCKET=" + m.socket, home + "/vrdma", "run", "-q", "--",
					"ucx_perftest", "-f", "-p", strconv.Itoa(port), "-n", strconv.Itoa(times), "-w", "5"}, strings.Fields(c.args)...)
				before := sent(t, d, m.nic)
				server := m.Launch(t, argv...)
				m.Await(t, server, port)
				client := m.Launch(t, append(argv, "127.0.0.1")...)
				done(t, client)
				done(t, server)
				if !result(client.Output()) {
					t.Errorf("ucx_perftest %s with UCX_TLS=%s printed no result:\n%s", c.args, tl, client.Output())
				}
				if !harness.Poll(limit, func() bool { return sent(t, d, m.nic)-before >= times*c.size }) {
					t.Errorf("the NIC sent %d bytes, want %d at least", sent(t, d, m.nic)-before, times*c.size)
				}
			})
		}
	}
}

// result reports whether ucx_perftest printed a line of numbers.
func result(out string) bool {
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) >= 4 {
			if _, err := strconv.ParseFloat(f[1], 64); err == nil {
				return true
			}
		}
	}
	return false
}
