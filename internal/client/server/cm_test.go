package server

import (
	"encoding/binary"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/client/eventfile"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/cm/rdmacm"
	"vrdma.dev/vrdma/internal/device/registry"
	"vrdma.dev/vrdma/internal/net/routes"
)

// channelOf opens the rdma_cm device for a process; commands then go there.
func channelOf(t testing.TB, s *Server, proc *protocol.Session) *client {
	t.Helper()
	c := &client{t: t, proc: proc, buf: make([]byte, protocol.MaxMessage)}
	c.dev = dial(t, s, protocol.Hello{Kind: protocol.KindRDMACM, Token: proc.Welcome.Token, Program: "prog"})
	if len(c.dev.Files) != 1 {
		t.Fatalf("%d descriptors, want the event socket", len(c.dev.Files))
	}
	return c
}

func process1(t testing.TB, s *Server) *protocol.Session {
	t.Helper()
	return dial(t, s, protocol.Hello{Kind: protocol.KindProcess, Program: "prog"})
}

// ucm builds a command of rdma_cm; behind is what the shim appends.
func ucm[T abi.Struct](cmd uint32, req *T, out int, behind ...byte) []byte {
	body := abi.Encode(nil, req)
	hdr := abi.CMCmdHeader{Cmd: cmd, In: uint16(len(body)), Out: uint16(out)}
	return append(append(abi.Encode(nil, &hdr), body...), behind...)
}

func (c *client) cmID(uid uint64, ps uint16) uint32 {
	c.t.Helper()
	return u32(c.must(ucm(abi.CMCmdCreateID, &abi.CMCreateID{UID: uid, Response: respAddr, PS: ps}, 4)), 0)
}

// event reads one event, of this kind.
func (c *client) event(kind uint32) (e abi.CMEventResp) {
	c.t.Helper()
	var b []byte
	eventually(c.t, "an event", func() bool {
		r, _ := c.send(ucm(abi.CMCmdGetEvent, &abi.CMGetEvent{Response: respAddr}, abi.Size[abi.CMEventResp]()))
		if r.Error == int32(syscall.EAGAIN) {
			return false
		}
		if r.Error != 0 || len(r.Stores) != 1 {
			c.t.Fatalf("GET_EVENT: errno %d, %d stores", r.Error, len(r.Stores))
		}
		b = r.Stores[0].Data
		return true
	})
	abi.Decode(b, &e)
	if e.Event != kind {
		c.t.Fatalf("event %d (status %d), want %d", e.Event, int32(e.Status), kind)
	}
	return e
}

func sockaddrOf(s string) abi.Sockaddr { return abi.ToSockaddr(netip.MustParseAddrPort(s)) }

// A whole connection, as librdmacm makes it.
func TestCMConnection(t *testing.T) {
	s := testServer(t)
	server, other := channelOf(t, s, process1(t, s)), channelOf(t, s, process1(t, s))
	l := server.cmID(100, abi.PSTCP)
	server.must(ucm(abi.CMCmdBindIP, &abi.CMBindIP{Addr: sockaddrOf("0.0.0.0:7000"), ID: l}, 0))
	server.must(ucm(abi.CMCmdListen, &abi.CMListen{ID: l}, 0))
	if protocol.Ready(int(server.dev.Files[0].Fd())) {
		t.Error("the event socket can be read without an event")
	}
	id := other.cmID(200, abi.PSTCP)
	other.must(ucm(abi.CMCmdResolveIP, &abi.CMResolveIP{DstAddr: sockaddrOf("192.0.2.1:7000"), ID: id, TimeoutMS: 2000}, 0))
	other.event(abi.CMEventAddrResolved)
	other.must(ucm(abi.CMCmdResolveRoute, &abi.CMResolveRoute{ID: id}, 0))
	other.event(abi.CMEventRouteResolved)
	var q abi.CMQueryRouteResp
	abi.Decode(other.must(ucm(abi.CMCmdQueryRoute, &abi.CMQuery{Response: respAddr, ID: id}, abi.Size[abi.CMQueryRouteResp]())), &q)
	if q.NumPaths != 1 || q.PortNum != 1 || q.NodeGUID == 0 || q.DstAddr != sockaddrOf("192.0.2.1:7000") {
		t.Errorf("QUERY_ROUTE: %+v", q)
	}
	other.must(ucm(abi.CMCmdConnect, &abi.CMConnect{ID: id, ConnParam: abi.CMConnParam{QPNum: 7, Valid: 1}}, 0))
	req := server.event(abi.CMEventConnectRequest)
	server.must(ucm(abi.CMCmdAccept, &abi.CMAccept{UID: 101, ID: req.ID, ConnParam: abi.CMConnParam{QPNum: 8, Valid: 1}}, 0))
	other.event(abi.CMEventConnectResponse)
	other.must(ucm(abi.CMCmdAccept, &abi.CMAccept{ID: id}, 0))
	server.event(abi.CMEventEstablished)
	if st, err := protocol.QueryStatus(s.listeners.list[0].Socket); err != nil || len(st.Connections) != 3 {
		t.Errorf("status shows %+v, %v; want a listener and two ends", st.Connections, err)
	}
	// The client's process ends: the server gets an event.
	other.proc.Close()
	server.event(abi.CMEventDisconnected)
	got := server.must(ucm(abi.CMCmdDestroyID, &abi.CMDestroyID{Response: respAddr, ID: req.ID}, 4))
	if n := u32(got, 0); n != 2 {
		t.Errorf("DESTROY_ID: %d events reported, want 2", n)
	}
}

func TestCMRefusals(t *testing.T) {
	s := testServer(t)
	a, b := channelOf(t, s, process1(t, s)), channelOf(t, s, process1(t, s))
	id := a.cmID(1, abi.PSTCP)
	other := channelOf(t, s, a.proc)
	destroy := func(id uint32) []byte {
		return ucm(abi.CMCmdDestroyID, &abi.CMDestroyID{Response: respAddr, ID: id}, 4)
	}
	b.fails("another process's ID", destroy(id+5), syscall.ENOENT)
	other.fails("an ID on another channel", destroy(id), syscall.EINVAL)
	a.fails("no room for the response", ucm(abi.CMCmdDestroyID, &abi.CMDestroyID{ID: id}, 2), syscall.ENOSPC)
	a.fails("too short", []byte{0, 0, 0}, syscall.EINVAL)
	a.fails("longer than it is", binary.NativeEndian.AppendUint32(nil, 0xffff0000), syscall.EINVAL)
	a.fails("an unknown command", ucm(99, &abi.CMListen{}, 0), syscall.EINVAL)
	for _, cmd := range []uint32{abi.CMCmdGetOption, abi.CMCmdResolveIBService} {
		a.fails("a command that nobody has, or of InfiniBand", ucm(cmd, &abi.CMListen{}, 0), syscall.ENOSYS)
	}
	a.fails("an event of ours", ucm(abi.CMCmdWriteCMEvent, &abi.CMWriteCMEvent{ID: id, Event: abi.CMEventEstablished}, 0), syscall.EINVAL)
	a.must(ucm(abi.CMCmdWriteCMEvent, &abi.CMWriteCMEvent{ID: id, Event: abi.CMEventUser, Status: 3, Param: [304]uint8{7}}, 0))
	if e := a.event(abi.CMEventUser); e.Status != 3 || e.Param[0] != 7 || e.UID != 1 {
		t.Errorf("a written event came back as %+v", e)
	}
	a.fails("no event", ucm(abi.CMCmdGetEvent, &abi.CMGetEvent{Response: respAddr}, 336), syscall.EAGAIN)
	a.fails("an option without its value", ucm(abi.CMCmdSetOption, &abi.CMSetOption{ID: id, OptLen: 4}, 0, 1), syscall.EINVAL)
	a.must(ucm(abi.CMCmdSetOption, &abi.CMSetOption{ID: id, OptName: abi.CMOptionIDReuseAddr, OptLen: 4}, 0, 1, 0, 0, 0))
	a.fails("no address", ucm(abi.CMCmdBindIP, &abi.CMBindIP{ID: id}, 0), syscall.EAFNOSUPPORT)
	a.fails("from a channel that is not ours", ucm(abi.CMCmdMigrateID, &abi.CMMigrateID{Response: respAddr, ID: id, FD: 77}, 4), syscall.EINVAL)
	other.must(ucm(abi.CMCmdMigrateID, &abi.CMMigrateID{Response: respAddr, ID: id, FD: a.dev.Welcome.ID}, 4))
	other.must(destroy(id))
}

// Without a route the command fails; without a peer the event says so.
func TestCMUnreachable(t *testing.T) {
	s := testServerWith(t, Config{Listeners: []Listener{{NIC: &registry.NIC{Routes: testRoutes{
		from: func(_, to netip.Addr) (netip.Addr, error) {
			if to == netip.MustParseAddr("198.51.100.1") {
				return netip.Addr{}, syscall.ENETUNREACH
			}
			return netip.MustParseAddr("192.0.2.1"), nil
		},
		reach: func(_, _ netip.Addr, timeout time.Duration) error { time.Sleep(timeout); return syscall.ETIMEDOUT },
	}}}}})
	a := channelOf(t, s, process1(t, s))
	resolve := func(id uint32, to string) []byte {
		return ucm(abi.CMCmdResolveIP, &abi.CMResolveIP{DstAddr: sockaddrOf(to), ID: id, TimeoutMS: 50}, 0)
	}
	id := a.cmID(1, abi.PSTCP)
	a.fails("no route", resolve(id, "198.51.100.1:7000"), syscall.ENETUNREACH)
	a.must(resolve(id, "198.51.100.2:7000"))
	if e := a.event(abi.CMEventAddrError); int32(e.Status) != -int32(syscall.ETIMEDOUT) {
		t.Errorf("status %d, want -ETIMEDOUT", int32(e.Status))
	}
}

// FuzzCM sends commands to an event channel and looks for panics and leaks.
func FuzzCM(f *testing.F) {
	seed := func(commands ...[]byte) {
		var b []byte
		for _, c := range commands {
			b = append(binary.LittleEndian.AppendUint16(b, uint16(len(c))), c...)
		}
		f.Add(b)
	}
	create := ucm(abi.CMCmdCreateID, &abi.CMCreateID{UID: 1, Response: 1, PS: abi.PSTCP}, 4)
	resolve := ucm(abi.CMCmdResolveIP, &abi.CMResolveIP{DstAddr: sockaddrOf("192.0.2.1:7000")}, 0)
	route := ucm(abi.CMCmdResolveRoute, &abi.CMResolveRoute{}, 0)
	connect := ucm(abi.CMCmdConnect, &abi.CMConnect{ConnParam: abi.CMConnParam{Valid: 1, PrivateDataLen: 3}}, 0)
	event := ucm(abi.CMCmdGetEvent, &abi.CMGetEvent{Response: 1}, 336)
	listen := ucm(abi.CMCmdBindIP, &abi.CMBindIP{Addr: sockaddrOf("0.0.0.0:7000"), ID: 1}, 0)
	seed(create, resolve, route, connect, event, event, event)
	seed(create, create, listen, ucm(abi.CMCmdListen, &abi.CMListen{ID: 1}, 0), resolve, route, connect, event, event, event,
		ucm(abi.CMCmdAccept, &abi.CMAccept{UID: 2, ID: 2, ConnParam: abi.CMConnParam{Valid: 1}}, 0), event,
		ucm(abi.CMCmdAccept, &abi.CMAccept{}, 0), ucm(abi.CMCmdDisconnect, &abi.CMDisconnect{}, 0), event,
		ucm(abi.CMCmdDestroyID, &abi.CMDestroyID{Response: 1}, 4))
	seed(ucm(abi.CMCmdCreateID, &abi.CMCreateID{UID: 1, Response: 1, PS: abi.PSUDP}, 4), resolve,
		ucm(abi.CMCmdJoinIPMcast, &abi.CMJoinIPMcast{Addr: sockaddrOf("224.0.0.9:0"), Response: 1}, 4), event,
		ucm(abi.CMCmdLeaveMcast, &abi.CMDestroyID{Response: 1}, 4), ucm(abi.CMCmdInitQPAttr, &abi.CMInitQPAttr{Response: 1, QPState: 1}, 144))
	s := testServerWith(f, Config{Listeners: []Listener{{NIC: &registry.NIC{Routes: routes.None{}}}}})
	f.Fuzz(func(t *testing.T, b []byte) {
		var client *rdmacm.Client
		ses := &cmSession{srv: s, nic: s.listeners.list[0].NIC, proc: &process{}}
		var end *os.File
		s.loop.Do(func() {
			client = s.listeners.list[0].NIC.Manager.NewClient(1, "fuzz")
			ses.ch, _ = client.NewChannel(func() (rdmacm.Signal, error) {
				signal, client, err := eventfile.New()
				end = client
				return signal, err
			})
		})
		defer end.Close()
		var builder protocol.ReplyBuilder
		var reply protocol.Reply
		for n := 0; len(b) >= 2 && n < 64; n++ {
			size := min(int(binary.LittleEndian.Uint16(b)), len(b)-2)
			builder.Reset(nil)
			errno := ses.command(b[2:2+size], &builder)
			if err := reply.Parse(finish(&builder, errno)); err != nil {
				t.Errorf("%x: the reply does not parse: %v", b[2:2+size], err)
			}
			b = b[2+size:]
		}
		var left int
		s.loop.Do(func() {
			client.Close()
			left = len(client.Status())
		})
		if left != 0 {
			t.Errorf("%d identifiers are left", left)
		}
	})
}
