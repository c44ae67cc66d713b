package launch

import (
	"strings"
	"testing"
)

// The options for the device come after the caller's mounts and before the program.
func TestInSandbox(t *testing.T) {
	p := Place{Socket: "/tmp/v/s"}
	const device = "--ro-bind /tmp/v/s /tmp/v/s --ro-bind /tmp/v/s.d /tmp/v/s.d --setenv VRDMA_SOCKET /tmp/v/s --setenv SYSFS_PATH /tmp/v/s.d/sys --setenv LD_PRELOAD /tmp/v/s.d/libvrdma.so"
	for _, tc := range []struct{ args, want string }{
		{"", ""},
		{"ib_send_bw --tmpfs /tmp", "ib_send_bw --tmpfs /tmp"},
		{"bwrap", "bwrap"},
		{"bwrap --help", "bwrap --help"},
		{"bwrap --bind /a", "bwrap --bind /a"}, // bwrap reports it
		{"bwrap --of-next-year x y", "bwrap --of-next-year x y"},
		{"bwrap ibv_devinfo -l", "bwrap " + device + " ibv_devinfo -l"},
		{"/usr/bin/bwrap --ro-bind / / --clearenv --tmpfs /tmp ibv_devinfo", "/usr/bin/bwrap --ro-bind / / --clearenv --tmpfs /tmp " + device + " ibv_devinfo"},
		{"bwrap --setenv A --tmpfs --unshare-all -- --odd", "bwrap --setenv A --tmpfs --unshare-all " + device + " -- --odd"},
	} {
		args := strings.Fields(tc.args)
		got := strings.Join(p.InSandbox(args, p.Environment([]string{"A=B"}, "")), " ")
		if got != tc.want || strings.Join(args, " ") != tc.args {
			t.Errorf("%s: got %s, want %s", tc.args, got, tc.want)
		}
	}
}
