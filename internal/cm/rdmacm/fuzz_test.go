package rdmacm

import (
	"testing"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/net/wire"
)

// FuzzRequest sends a message from another host, twice, to a host with listeners in every port space: requests with any header before
// their private data, and any other message. Nothing may panic, requests can be accepted, and no state is left.
func FuzzRequest(f *testing.F) {
	for m := wire.CMREQ; m <= wire.CMAPR; m++ {
		for _, ps := range []uint16{abi.PSTCP, abi.PSUDP, abi.PSIB} {
			mad := make(wire.MAD, wire.MADSize)
			mad.InitCM(m, 1)
			private := wire.REQ(mad.Data()).Private()
			if m == wire.CMSIDRREQ {
				wire.SIDRREQ(mad.Data()).SetServiceID(serviceID(portKey{ps, 7000}))
				private = wire.SIDRREQ(mad.Data()).Private()
			} else if m == wire.CMREQ {
				wire.REQ(mad.Data()).SetServiceID(serviceID(portKey{ps, 7000}))
			}
			h := wire.IPAddressing(private)
			h.SetIPVersion(4)
			h.SetDst(plain16(addr("10.0.0.1:1").Addr()))
			f.Add([]byte(mad))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		host := newFabric(t)
		p := host.program()
		for i, ps := range []uint16{abi.PSTCP, abi.PSUDP, abi.PSIB, abi.PSIPoIB} {
			l := p.id(uint64(i+1), ps)
			p.must(l.Bind(addr("0.0.0.0:7000")))
			p.must(l.Listen(1))
		}
		mad := make(wire.MAD, wire.MADSize)
		copy(mad, b)
		for range 2 {
			host.cma.ReceiveMAD(gid("10.0.0.9"), gid("10.0.0.1"), mad)
		}
		for range 8 {
			e, err := p.ch.GetEvent()
			if err != nil {
				break
			}
			if id, err := p.ch.ID(e.ID); err == nil && e.Event == abi.CMEventConnectRequest {
				id.Accept(uint64(e.ID)+100, &abi.CMConnParam{Valid: 1, QPNum: 5}, ECE{})
				id.QPAttr(abi.QPStateRTR)
				id.QPAttr(abi.QPStateRTS)
			}
		}
		host.wait(5e9)
		p.c.Status()
		p.c.Close()
	})
}
