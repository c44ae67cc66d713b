package show

import (
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/client/protocol"
)

// busyStatus has two programs, an interface of a container, the card of a virtual machine, and a NIC that nobody has.
var busyStatus = protocol.Status{
	Programs: []protocol.ProgramStatus{
		{NIC: "default", Pid: 7, UID: 1000, Program: "idle"}, {NIC: "red/web", Pid: 8, Program: "busy", Container: "podman web"},
	},
	Sessions: []protocol.SessionStatus{
		{NIC: "red/web", Pid: 8, MRBytes: 4096, QPs: []protocol.QPStatus{{DestQPN: 17, Outstanding: 3}, {}}},
	},
	NICs: []protocol.NICStatus{
		{Tenant: "red", NIC: "web", Container: "podman web", RoCE: "daemon"}, {Tenant: "red", NIC: "db"},
		{Tenant: "blue", NIC: "vm", Container: "machine qemu", RoCE: "card"},
	},
}

const busyInterfaces = `NIC      INTERFACE OF
blue/vm  machine qemu
red/web  podman web
2 interfaces have no network while no daemon runs
`

// TestImpact: programs come with their connections, and interfaces after them.
func TestImpact(t *testing.T) {
	idle := busyStatus
	idle.Programs, idle.Sessions = nil, nil
	for _, c := range []struct {
		name   string
		status protocol.Status
		want   string
	}{
		{"nothing", protocol.Status{}, "no program would be hit\n"},
		{"interfaces", idle, "no program would be hit\n" + busyInterfaces},
		{"both", busyStatus, `NIC      PROGRAM  PID  UID   CONTAINER   QPS  CONNECTED  OUTSTANDING  MEMORY
red/web  busy     8    0     podman web  2    1          3            4.0 KiB
default  idle     7    1000  -           0    0          0            0 B
2 programs get DEVICE_FATAL when the daemon ends
` + busyInterfaces},
	} {
		t.Run(c.name, func(t *testing.T) {
			var b strings.Builder
			PrintImpact(&b, ImpactOf(&c.status))
			if b.String() != c.want {
				t.Errorf("got\n%swant\n%s", b.String(), c.want)
			}
		})
	}
}
