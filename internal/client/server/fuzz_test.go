package server

import (
	"encoding/binary"
	"testing"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/client/uverbs"
	"vrdma.dev/vrdma/internal/device/memory"
)

// FuzzCommand sends commands to a device, each with its length before it, all with one extent. It looks for panics,
// malformed replies and leaked objects.
func FuzzCommand(f *testing.F) {
	seed := func(commands ...[]byte) {
		var b []byte
		for _, c := range commands {
			b = append(binary.LittleEndian.AppendUint16(b, uint16(len(c))), c...)
		}
		f.Add(b, uint64(4096), uint64(100), uint32(protocol.ExtentOwn))
	}
	create := func(typ uint8) []byte {
		r := qpRequest(0, 0)
		r.QPType = typ
		return legacy(abi.CmdCreateQP, r, nil, 64)
	}
	alloc := legacy(abi.CmdAllocPD, &abi.AllocPD{Response: 1}, nil, 4)
	makeCQ := legacy(abi.CmdCreateCQ, &abi.CreateCQ{Response: 1, CQE: 3, CompChannel: -1}, nil, 24)
	seed(alloc, makeCQ, create(abi.QPTypeRC), legacy(abi.CmdModifyQP, &abi.ModifyQP{AttrMask: 0x39, QPState: 1, PortNum: 1}, nil, 0))
	seed(alloc, makeCQ, create(abi.QPTypeUD), legacy(abi.CmdAttachMcast, &abi.AttachMcast{GID: [16]byte{0xff}}, nil, 0),
		legacy(abi.CmdDestroyQP, &abi.DestroyQP{Response: 1}, nil, 4))
	seed(alloc, legacy(abi.CmdCreateSRQ, &abi.CreateSRQ{Response: 1, MaxWR: 5, MaxSGE: 2}, nil, 40),
		legacy(abi.CmdModifySRQ, &abi.ModifySRQ{AttrMask: 3, MaxWR: 9, SRQLimit: 2}, make([]byte, 8), 0),
		legacy(abi.CmdDestroySRQ, &abi.DestroySRQ{Response: 1}, nil, 4))
	seed(legacy(abi.CmdCreateCompChannel, &abi.CreateCompChannel{Response: 1}, nil, 4),
		extended(abi.ExCmdCreateCQ, &abi.ExCreateCQ{CQE: 4}, 16, 16),
		legacy(abi.CmdResizeCQ, &abi.ResizeCQ{Response: 1, CQE: 70}, nil, 24),
		legacy(abi.CmdDestroyCQ, &abi.DestroyCQ{Response: 1}, nil, 8))
	seed(alloc, legacy(abi.CmdAllocMW, &abi.AllocMW{Response: 1, MWType: 2}, nil, 8), legacy(abi.CmdDeallocMW, &abi.DeallocMW{}, nil, 0))
	seed(extended(abi.ExCmdQueryDevice, &abi.ExQueryDevice{}, abi.Size[abi.ExQueryDeviceResp](), 0))
	seed(alloc, legacy(abi.CmdRegMR, &abi.RegMR{Response: 1, Start: 4096, HCAVA: 4096, Length: 100, AccessFlags: 1}, nil, 12),
		legacy(abi.CmdDeregMR, &abi.DeregMR{}, nil, 0))

	s := testServer(f)
	space, err := memory.NewSpace(1 << 20)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(space.Close)
	f.Fuzz(func(t *testing.T, b []byte, start, length uint64, kind uint32) {
		p := &process{nic: s.listeners.list[0].NIC, listener: s.listeners.list[0], space: space, sessions: make(map[*session]struct{})}
		ses, err := s.openSession(socketEnd{}, p)
		if err != nil {
			t.Fatal(err)
		}
		var builder protocol.ReplyBuilder
		var reply protocol.Reply
		run := func(command []byte) {
			req := protocol.Request{
				Op: protocol.OpCommand, Command: command,
				Extents: []protocol.Extent{{Start: start, Length: length, Kind: kind, Prot: 3}},
			}
			builder.Reset(nil)
			var msg []byte
			var files []uverbs.Handle
			var rest rest
			if err := s.loop.Do(func() { msg, rest = ses.onLoop(&req, &builder) }); err != nil {
				t.Fatal(err)
			}
			if rest != nil {
				msg, files = rest()
			}
			for _, f := range files {
				f.Close()
			}
			if err := reply.Parse(msg); err != nil {
				t.Errorf("command %x: the reply does not parse: %v", command, err)
			}
			if len(files) != len(reply.FDs) {
				t.Errorf("command %x: %d descriptors announced, %d sent", command, len(reply.FDs), len(files))
			}
		}
		run(legacy(abi.CmdGetContext, &abi.GetContext{Response: 1}, nil, 8))
		for n := 0; len(b) >= 2 && n < 64; n++ {
			size := min(int(binary.LittleEndian.Uint16(b)), len(b)-2)
			run(b[2 : 2+size])
			b = b[2+size:]
		}
		ses.end()
		var left int
		s.loop.Do(func() { left = s.listeners.list[0].NIC.Device.Sessions() })
		if left != 0 || space.Mapped() != 0 {
			t.Errorf("%d sessions and %d registered bytes are left", left, space.Mapped())
		}
	})
}
