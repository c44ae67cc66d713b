package apps

import (
	"fmt"
	"path/filepath"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// TestRPMA: two programs with librpma, the library for remote persistent memory, write, flush, write atomically, read back and compare.
func TestRPMA(t *testing.T) {
	library := find(t, "librpma0", "usr/lib/*-linux-gnu/librpma.so.0")
	program := harness.CompileWith(t, "rpma", "gcc", "-isystem", filepath.Join(harness.Unpacked(t, "librpma-dev"), "usr/include"), library, "-libverbs")
	libs := []string{libraries(t, "librpma0")}
	places(t, func(t *testing.T, p place) {
		before := p.sent(t)
		port := harness.FreePort(t)
		argv := with(libs, program, "listen", p.ip, fmt.Sprint(port))
		server := p.server.Launch(t, argv...)
		server.Printed(t, "listening", minute)
		p.client.Run(t, minute, with(libs, program, "connect", p.ip, fmt.Sprint(port))...)
		server.OK(t, minute)
		if after := p.sent(t); after.Bytes-before.Bytes < 1<<20 {
			t.Errorf("the devices sent %d bytes", after.Bytes-before.Bytes)
		}
	})
}
