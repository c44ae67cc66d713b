package rdmacm

import (
	"net/netip"
	"testing"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/cm"
	"vrdma.dev/vrdma/internal/net/wire"
)

// TestFalseName sends a request that claims another host's address. Programs see the real source address.
func TestFalseName(t *testing.T) {
	f := newFabric(t)
	server := f.program()
	server.listener(100, abi.PSTCP, "0.0.0.0:7000", 0)
	m := requestFrom(5, portKey{abi.PSTCP, 7000})
	wire.IPAddressing(wire.REQ(m.Data()).Private()).SetSrc(plain16(addr("10.0.0.7:0").Addr()))
	f.cma.ReceiveMAD(gid("10.0.0.9"), gid("10.0.0.1"), m)
	id, err := server.ch.ID(server.next(abi.CMEventConnectRequest).ID)
	server.must(err)
	if q := id.Query(); q.Dst != addr("10.0.0.9:1234") || q.Src != addr("10.0.0.1:7000") {
		t.Errorf("a connection from %v to %v, want from 10.0.0.9:1234", q.Dst, q.Src)
	}
}

// requestFrom returns the REQ of a stranger at 10.0.0.9, with its own communication ID.
func requestFrom(number uint32, k portKey) wire.MAD {
	m := make(wire.MAD, wire.MADSize)
	m.InitCM(wire.CMREQ, 1)
	req := wire.REQ(m.Data())
	req.SetLocalCommID(number)
	req.SetLocalQPN(0x50 + number)
	req.SetServiceID(serviceID(k))
	h := wire.IPAddressing(req.Private())
	h.SetIPVersion(4)
	h.SetSrc(plain16(addr("10.0.0.9:0").Addr()))
	h.SetSrcPort(1234)
	h.SetDst(plain16(addr("10.0.0.1:0").Addr()))
	return m
}

// TestTransportService checks that a request for a transport service that the listener does not have is rejected, and that the connection
// has the requested service.
func TestTransportService(t *testing.T) {
	none := uint8(0) // a listener that takes any
	for _, c := range []struct {
		name          string
		ps            uint16
		listener      uint8
		service, more uint8
		want          uint16 // reason, 0: accepted
		typ           uint8
	}{
		{"RC to RC", abi.PSTCP, abi.QPTypeRC, wire.ServiceRC, 0, 0, abi.QPTypeRC},
		{"UC to RC", abi.PSTCP, abi.QPTypeRC, wire.ServiceUC, 0, cm.RejectConsumer, 0},
		{"RD to RC", abi.PSTCP, abi.QPTypeRC, wire.ServiceRD, 0, cm.RejectConsumer, 0},
		{"XRC to RC", abi.PSTCP, abi.QPTypeRC, wire.ServiceExtended, 1, cm.RejectConsumer, 0},
		{"RC to UC", abi.PSIB, abi.QPTypeUC, wire.ServiceRC, 0, cm.RejectConsumer, 0},
		{"UC to UC", abi.PSIB, abi.QPTypeUC, wire.ServiceUC, 0, 0, abi.QPTypeUC},
		{"RC to UD", abi.PSUDP, abi.QPTypeUD, wire.ServiceRC, 0, cm.RejectConsumer, 0},
		{"RC to any", abi.PSIB, none, wire.ServiceRC, 0, 0, abi.QPTypeRC},
		{"UC to any", abi.PSIB, none, wire.ServiceUC, 0, 0, abi.QPTypeUC},
		{"XRC to any", abi.PSIB, none, wire.ServiceExtended, 1, cm.RejectTransport, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFabric(t)
			server := f.program()
			l, err := server.ch.Create(100, c.ps, c.listener)
			server.must(err)
			server.must(l.Bind(addr("0.0.0.0:7000")))
			server.must(l.Listen(0))
			m := requestFrom(5, portKey{c.ps, 7000})
			wire.REQ(m.Data()).SetTransportService(c.service)
			wire.REQ(m.Data()).SetExtendedTransport(c.more)
			f.cma.ReceiveMAD(gid("10.0.0.9"), gid("10.0.0.1"), m)
			if c.want == 0 {
				id, err := server.ch.ID(server.next(abi.CMEventConnectRequest).ID)
				server.must(err)
				if id.qpType != c.typ {
					t.Errorf("a connection of type %d, want %d", id.qpType, c.typ)
				}
				return
			}
			if len(f.q) != 1 || wire.CMMessage(wire.MAD(f.q[0].b).Attribute()) != wire.CMREJ {
				t.Fatalf("%d messages are under way, want a REJ", len(f.q))
			}
			if got := wire.REJ(wire.MAD(f.q[0].b).Data()).Reason(); got != c.want {
				t.Errorf("rejected for reason %d, want %d", got, c.want)
			}
			server.none()
		})
	}
}

// TestCrowded checks that the first connection that is forgotten early is reported, and no other.
func TestCrowded(t *testing.T) {
	f := newFabric(t)
	var peers []string
	f.cma.Crowded = func(peer netip.Addr) { peers = append(peers, peer.String()) }
	for _, a := range []string{"10.0.0.9", "fd00::9"} {
		f.cma.dropped(&cm.Conn{Path: cm.Path{DGID: gid(a)}})
	}
	if len(peers) != 1 || peers[0] != "10.0.0.9" {
		t.Errorf("reported are %v, want 10.0.0.9", peers)
	}
}
