package nic

import (
	"encoding/binary"
	"net/netip"
	"os"
	"syscall"
	"testing"

	"vrdma.dev/vrdma/internal/abi"
)

// TestSetFace: when the addresses of a NIC change, a program that has it open gets an event. Remaining addresses keep their rows, and an
// empty row is not an address.
func TestSetFace(t *testing.T) {
	r := newRig(t, Limits{})
	o := r.objects()
	var end *os.File
	o.s.async.close()
	o.s.async = nil
	if err := o.s.CreateAsync(socket(&end)); err != nil {
		t.Fatal(err)
	}
	defer end.Close()
	gid := func(a string) GIDEntry { return GIDEntry{GID: netip.MustParseAddr(a).As16()} }
	r.nic.SetFace(Face{GIDs: []GIDEntry{gid("192.0.2.2"), gid("127.0.0.1")}, MTU: 3, Rows: []int{1, 3}})
	var b [16]byte
	if n, err := end.Read(b[:]); n != 16 || err != nil || binary.NativeEndian.Uint64(b[:]) != 1 || binary.NativeEndian.Uint32(b[8:]) != abi.EventGIDChange {
		t.Errorf("the program is told %v, %d bytes, %v", b, n, err)
	}
	for row, want := range map[uint8]error{0: syscall.EINVAL, 1: nil, 2: syscall.EINVAL, 3: nil, 4: syscall.EINVAL, 255: syscall.EINVAL} {
		h, _, err := o.s.CreateAH(o.pd, AHAttr{IsGlobal: true, PortNum: 1, SGIDIndex: row})
		if err != want {
			t.Errorf("an address handle from row %d: %v, want %v", row, err, want)
		}
		if err == nil {
			o.s.DestroyAH(h)
		}
	}
	for rows, want := range map[int]int{40: 41, 7: 32} {
		r.nic.SetFace(Face{GIDs: []GIDEntry{gid("192.0.2.2")}, MTU: 3, Rows: []int{rows}})
		if n := r.nic.GIDTableLen(); n != want {
			t.Errorf("a table with row %d has %d, want %d", rows, n, want)
		}
	}
}
