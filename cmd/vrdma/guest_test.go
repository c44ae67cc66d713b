package main

import (
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/client/protocol"
)

// TestGuestArgs: arguments for emulated machines are printed only with --tcg.
func TestGuestArgs(t *testing.T) {
	e := guestEnd{card: "/run/a,b/guest.sock", nic: protocol.GuestCard{MAC: "02:56:0a:01:00:01", MTU: 1400}}
	for _, tcg := range []bool{false, true} {
		q := qemu{memory: "1G", id: "v", queues: 2, tcg: tcg}
		args, xml := strings.Join(q.args(e), " "), q.xml(e)
		if strings.Contains(args, "vectors=0") != tcg || strings.Contains(xml, "'vectors'") != tcg {
			t.Errorf("tcg %v:\n%s\n%s", tcg, args, xml)
		}
		for _, want := range []string{"path=/run/a,,b/guest.sock", "mac=02:56:0a:01:00:01", "queues=2"} {
			if !strings.Contains(args, want) {
				t.Errorf("tcg %v: no %s in\n%s", tcg, want, args)
			}
		}
	}
}
