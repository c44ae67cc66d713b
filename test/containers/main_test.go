// Package containers tests what a container gets of vrdma, with a real engine: podman on a host of
// the test's own.
//
//	the machine
//	└── host: mount, network, pid and ipc namespaces; its root is an overlay over an unpacked Debian
//	    ├── vrdma daemon, /run/vrdma
//	    ├── podman, as root and as an ordinary user
//	    └── containers: unpacked Debians of several releases
//
// The host's files are in memory, and everything in it ends with its first process, so nothing is left
// and nothing outside is changed: podman's bridges, forwarding and packet filters are in the host's
// network namespace, and it makes no control groups.
//
// Tests run one after the other, on a host of their own each.
package containers

import (
	"testing"
	"time"

	"vrdma.dev/vrdma/test/harness"
)

const minute = time.Minute

func TestMain(m *testing.M) {
	buryGroups()
	harness.Main(m)
}
