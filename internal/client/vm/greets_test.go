package vm

import (
	"testing"

	"vrdma.dev/vrdma/internal/client/protocol"
)

// A program in a guest keeps its faults, and nothing else that its greeting asks for.
func TestGreets(t *testing.T) {
	const all = ^uint32(0)
	h := protocol.Hello{Magic: protocol.Magic, Protocol: protocol.Version, Kind: protocol.KindProcess, Flags: all, Faults: "reg-mr,message=1"}
	b := h.Append(nil)
	var c conversation
	c.greets(b)
	got, err := protocol.ParseHello(b)
	if err != nil || got.Flags != protocol.HelloFaults || got.Faults != h.Faults {
		t.Errorf("got flags %#x, faults %q, %v; want only faults, %q", got.Flags, got.Faults, err, h.Faults)
	}
	if !c.process {
		t.Error("it is not noted that a process greets")
	}
	c.greets(b[:20]) // the session refuses it
}
