package guest

import (
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// pressure: control groups v2 with memory.high, and the kernel's report that tasks wait for memory, which this machine may lack.
// A program in the daemon's group needs more memory than the group may have: the daemon says that memory is short, serves, and
// says when it is over. It runs after memory, which installs what libvrdma.so needs.
func (l *lab) pressure(t *testing.T) {
	const (
		socket = "/tmp/pressure.sock"
		group  = "/groups/vrdma"
		enter  = "echo $$ >" + group + "/cgroup.procs && exec "
	)
	l.guest.Run(t, limit, "sh", "-c", "mkdir -p /groups && mount -t cgroup2 none /groups && echo +memory >/groups/cgroup.subtree_control && mkdir "+group)
	defer l.guest.Run(t, limit, "sh", "-c", "rm -f /tmp/pressure.fill; for i in 1 2 3 4 5 6 7 8 9; do rmdir "+group+" && break; sleep 1; done; umount /groups")
	daemon := l.guest.Launch(t, "sh", "-c", enter+harness.Binary()+" daemon --socket "+socket+" --network=false --store none --usage none --log-level debug")
	defer daemon.End()
	await(t, "a daemon that watches its group", func() bool {
		return strings.Contains(daemon.Output(), "pressure is watched") || strings.Contains(daemon.Output(), "cannot be watched")
	})
	if !strings.Contains(daemon.Output(), group+"/memory.pressure") {
		t.Fatalf("the daemon does not watch its own group:\n%s", daemon.Output())
	}
	l.guest.Run(t, limit, "sh", "-c", "echo 48M >"+group+"/memory.high")
	fill := l.guest.Launch(t, "sh", "-c", enter+"dd if=/dev/zero of=/tmp/pressure.fill bs=1M count=100")
	defer fill.End()
	await(t, "that memory is short", func() bool { return strings.Contains(daemon.Output(), "memory is short") })
	l.guest.Run(t, limit, harness.Binary(), "--socket", socket, "status")
	fill.End()
	l.guest.Run(t, limit, "sh", "-c", "rm -f /tmp/pressure.fill; echo max >"+group+"/memory.high")
	await(t, "the end of the shortage", func() bool { return strings.Contains(daemon.Output(), "memory is no longer short") })
	daemon.End()
	daemon.Ended(limit)
}
