package server

import (
	"bytes"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/client/protocol"
)

// A seer is a client of rdma_cm that supports answers ahead.
type seer struct {
	*mailer
	said []protocol.Ahead // the answers ahead that it got
	ids  []uint32
	port uint16 // where it listens

	asks   bool // it takes no event by itself
	picked int  // events that it took by itself
	events []abi.CMEventResp
}

func newSeer(t testing.TB, s *Server) *seer {
	t.Helper()
	c := &seer{mailer: newMailerWith(t, s, protocol.KindRDMACM, protocol.HelloMail|protocol.HelloAhead)}
	for c.patient() && c.mailed == 0 {
		c.do(ucm(abi.CMCmdListen, &abi.CMListen{ID: 1 << 20}, 0))
	}
	if c.mail == nil || !c.mail.Ahead() || c.mailed == 0 {
		t.Fatal("there is no mailbox with revisions, or it is never open")
	}
	return c
}

// do runs a command and keeps the answers ahead of its reply.
func (c *seer) do(command []byte) (resp []byte, errno syscall.Errno) {
	c.t.Helper()
	r := c.send(command)
	c.heard(&r)
	if len(r.Stores) > 0 {
		resp = bytes.Clone(r.Stores[0].Data)
	}
	return resp, syscall.Errno(r.Error)
}

// heard keeps the answers ahead of a reply.
func (c *seer) heard(r *protocol.Reply) {
	for _, a := range r.Ahead {
		a.Data = bytes.Clone(a.Data)
		c.said = append(c.said, a)
	}
}

func (c *seer) make(uid uint64) uint32 {
	c.t.Helper()
	b, errno := c.do(ucm(abi.CMCmdCreateID, &abi.CMCreateID{UID: uid, Response: respAddr, PS: abi.PSTCP}, 4))
	if errno != 0 {
		c.t.Fatalf("CREATE_ID: %v", errno)
	}
	c.ids = append(c.ids, u32(b, 0))
	return u32(b, 0)
}

// take takes an event, if there is one: from the shelf, or by asking.
func (c *seer) take() (e abi.CMEventResp, ok bool) {
	c.t.Helper()
	if n, ok := c.pick(); ok {
		var r protocol.Reply
		if err := r.Parse(c.buf[:n]); err != nil || r.Error != 0 || len(r.Stores) != 1 {
			c.t.Fatalf("an event on the shelf: %v, %+v", err, r)
		}
		c.picked++
		c.heard(&r)
		abi.Decode(r.Stores[0].Data, &e)
		return c.took(e), true
	}
	b, errno := c.do(ucm(abi.CMCmdGetEvent, &abi.CMGetEvent{Response: respAddr}, abi.Size[abi.CMEventResp]()))
	if errno != 0 {
		return e, false
	}
	abi.Decode(b, &e)
	return c.took(e), true
}

// pick takes an event from the shelf.
func (c *seer) pick() (int, bool) {
	if c.asks || !c.mail.Ahead() {
		return 0, false
	}
	return c.mail.Pick(c.buf)
}

func (c *seer) took(e abi.CMEventResp) abi.CMEventResp {
	if e.Event == abi.CMEventConnectRequest {
		c.ids = append(c.ids, e.ID)
	}
	c.events = append(c.events, e)
	return e
}

// check asks for the answer that it got ahead, unless that was revoked, and reports whether it did. Both answers must
// be equal.
func (c *seer) check(a protocol.Ahead) bool {
	c.t.Helper()
	if c.mail.Revision(a.ID) != a.Revision {
		return false
	}
	resp, errno := c.do(ucm(a.Command, &abi.CMInitQPAttr{Response: respAddr, ID: a.ID, QPState: a.Key}, len(a.Data)))
	if c.mail.Revision(a.ID) != a.Revision {
		return false // it changed meanwhile
	}
	if errno != 0 || !bytes.Equal(resp, a.Data) {
		c.t.Fatalf("command %d of id %d, key %d: %v\n%x\nahead it was\n%x", a.Command, a.ID, a.Key, errno, resp, a.Data)
	}
	return true
}

// next takes the next event, which must be of this kind and bring n answers, all of them true.
func (c *seer) next(kind uint32, answers int) (e abi.CMEventResp) {
	c.t.Helper()
	c.said = nil
	eventually(c.t, "an event", func() (ok bool) { e, ok = c.take(); return ok })
	if e.Event != kind || len(c.said) != answers {
		c.t.Fatalf("event %d with %d answers ahead, want %d with %d", e.Event, len(c.said), kind, answers)
	}
	for _, a := range c.said {
		if a.ID != e.ID || !c.check(a) {
			c.t.Errorf("command %d key %d of id %d is revoked already", a.Command, a.Key, a.ID)
		}
	}
	return e
}

func (c *seer) must(command []byte) {
	c.t.Helper()
	if _, errno := c.do(command); errno != 0 {
		c.t.Fatal(errno)
	}
}

// connects makes two identifiers that will be connected; the caller reads the events.
func (c *seer) connects(l *seer, port uint16) (id uint32) {
	c.t.Helper()
	listener := l.make(100)
	l.must(ucm(abi.CMCmdBindIP, &abi.CMBindIP{Addr: sockaddrOf("0.0.0.0:" + strconv.Itoa(int(port))), ID: listener}, 0))
	l.must(ucm(abi.CMCmdListen, &abi.CMListen{ID: listener}, 0))
	id = c.make(200)
	c.must(ucm(abi.CMCmdResolveIP, &abi.CMResolveIP{DstAddr: sockaddrOf("192.0.2.1:" + strconv.Itoa(int(port))), ID: id, TimeoutMS: 2000}, 0))
	return id
}

// A connection as librdmacm makes it: what it asks after each event is answered with the event,
// and revoked by the command that changes it.
func TestAhead(t *testing.T) {
	s := testServer(t)
	server, other := newSeer(t, s), newSeer(t, s)
	id := other.connects(server, 7000)
	other.next(abi.CMEventAddrResolved, 1)
	other.must(ucm(abi.CMCmdResolveRoute, &abi.CMResolveRoute{ID: id}, 0))
	other.next(abi.CMEventRouteResolved, 2)
	told := other.said
	other.must(ucm(abi.CMCmdConnect, &abi.CMConnect{ID: id, ConnParam: abi.CMConnParam{QPNum: 7, Valid: 1}}, 0))
	if slices.ContainsFunc(told, other.check) {
		t.Error("CONNECT has revoked nothing")
	}
	req := server.next(abi.CMEventConnectRequest, 4)
	server.must(ucm(abi.CMCmdAccept, &abi.CMAccept{UID: 101, ID: req.ID, ConnParam: abi.CMConnParam{QPNum: 8, Valid: 1}}, 0))
	other.next(abi.CMEventConnectResponse, 3)
	other.must(ucm(abi.CMCmdAccept, &abi.CMAccept{ID: id}, 0))
	server.next(abi.CMEventEstablished, 0)
	eventually(t, "no events wait", func() bool { return server.mail.Events() == 0 })
	other.must(ucm(abi.CMCmdDisconnect, &abi.CMDisconnect{ID: id}, 0))
	eventually(t, "an event waits", func() bool { return server.mail.Events() == 1 })
	server.next(abi.CMEventDisconnected, 0)
}

// TestAheadTraced: a traced client gets no answers ahead, and those that it has are revoked.
func TestAheadTraced(t *testing.T) {
	s := testServer(t)
	server, other := newSeer(t, s), newSeer(t, s)
	id := other.connects(server, 7000)
	other.next(abi.CMEventAddrResolved, 1)
	told := other.said[0]
	tr, err := protocol.Trace(s.listeners.list[0].Socket, "")
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	eventually(t, "it is revoked", func() bool { return other.mail.Revision(told.ID) != told.Revision })
	other.must(ucm(abi.CMCmdResolveRoute, &abi.CMResolveRoute{ID: id}, 0))
	other.next(abi.CMEventRouteResolved, 0)
}

// TestNotAhead: a client that does not announce support gets no answers ahead.
func TestNotAhead(t *testing.T) {
	s := testServer(t)
	server := newSeer(t, s)
	other := &seer{mailer: newMailer(t, s, protocol.KindRDMACM)}
	for other.patient() && other.mailed == 0 {
		other.do(ucm(abi.CMCmdListen, &abi.CMListen{ID: 1 << 20}, 0))
	}
	if other.mail.Ahead() {
		t.Error("it has revisions")
	}
	other.connects(server, 7000)
	other.next(abi.CMEventAddrResolved, 0)
}

// Whatever programs do, an answer ahead that was not revoked equals the answer to the question.
func TestAheadIsTrue(t *testing.T) {
	seed := uint64(rand.Uint32())
	if v := os.Getenv("VRDMA_SEED"); v != "" {
		seed, _ = strconv.ParseUint(v, 10, 64)
	}
	t.Logf("VRDMA_SEED=%d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	s := testServer(t)
	a, b := newSeer(t, s), newSeer(t, s)
	checked := map[[2]uint32]int{}
	for i, c := range []*seer{a, b} {
		id := c.make(uint64(100 + i))
		c.ids, c.port = nil, uint16(7000+i)
		c.must(ucm(abi.CMCmdBindIP, &abi.CMBindIP{Addr: sockaddrOf("0.0.0.0:" + strconv.Itoa(int(c.port))), ID: id}, 0))
		c.must(ucm(abi.CMCmdListen, &abi.CMListen{ID: id}, 0))
	}
	asked := [][2]uint32{{abi.CMCmdQueryRoute, 0}, {abi.CMCmdInitQPAttr, abi.QPStateInit}, {abi.CMCmdInitQPAttr, abi.QPStateRTR}, {abi.CMCmdInitQPAttr, abi.QPStateRTS}}
	enough := func() bool {
		return a.picked+b.picked >= 5 && !slices.ContainsFunc(asked, func(k [2]uint32) bool { return checked[k] < 20 })
	}
	// Chance and the server's speed decide what is checked. The test continues until each kind was, a minute at most.
	deadline := time.Now().Add(time.Minute)
	for n := 0; n < 2500 || !enough() && time.Now().Before(deadline); n++ {
		c, peer := a, b
		if rnd.IntN(2) == 0 {
			c, peer = b, a
		}
		if len(c.ids) < 3 {
			c.make(rnd.Uint64() | 1)
		}
		if len(c.ids) > 12 {
			c.step(rnd, peer, destroys)
		}
		c.step(rnd, peer, rnd.IntN(actions))
		c.asks = rnd.IntN(2) == 0
		for range rnd.IntN(3) {
			c.take()
		}
		for range 3 {
			if len(c.said) == 0 {
				break
			}
			i := rnd.IntN(len(c.said))
			if told := c.said[i]; c.check(told) {
				checked[[2]uint32{told.Command, told.Key}]++
			} else {
				c.said = slices.Delete(c.said, i, i+1)
			}
		}
	}
	if a.picked+b.picked < 5 {
		t.Errorf("%d events were taken off the shelf", a.picked+b.picked)
	}
	for _, k := range asked {
		if checked[k] < 20 {
			t.Errorf("command %d, key %d was checked %d times", k[0], k[1], checked[k])
		}
	}
}

const (
	destroys = iota
	actions  = 12
)

// step does something with one of the identifiers.
func (c *seer) step(rnd *rand.Rand, peer *seer, action int) {
	c.t.Helper()
	i := rnd.IntN(len(c.ids))
	id := c.ids[i]
	switch action {
	case destroys:
		c.do(ucm(abi.CMCmdDestroyID, &abi.CMDestroyID{Response: respAddr, ID: id}, 4))
		c.ids = slices.Delete(c.ids, i, i+1)
	case 1:
		c.do(ucm(abi.CMCmdBindIP, &abi.CMBindIP{Addr: sockaddrOf("0.0.0.0:0"), ID: id}, 0))
	case 2, 3:
		c.do(ucm(abi.CMCmdResolveIP, &abi.CMResolveIP{DstAddr: sockaddrOf("192.0.2.1:" + strconv.Itoa(int(peer.port))), ID: id, TimeoutMS: 2000}, 0))
	case 4, 5:
		c.do(ucm(abi.CMCmdResolveRoute, &abi.CMResolveRoute{ID: id}, 0))
	case 6, 7:
		c.do(ucm(abi.CMCmdConnect, &abi.CMConnect{ID: id, ConnParam: abi.CMConnParam{
			QPNum: 1 + rnd.Uint32N(1<<20), Valid: 1, ResponderResources: uint8(rnd.IntN(4)), InitiatorDepth: uint8(rnd.IntN(4)),
		}}, 0))
	case 8, 9:
		c.do(ucm(abi.CMCmdAccept, &abi.CMAccept{UID: rnd.Uint64() | 1, ID: id, ConnParam: abi.CMConnParam{
			QPNum: 1 + rnd.Uint32N(1<<20), Valid: uint8(rnd.IntN(2)), ResponderResources: uint8(rnd.IntN(4)), InitiatorDepth: uint8(rnd.IntN(4)),
		}}, 0))
	case 10:
		if rnd.IntN(2) == 0 {
			c.do(ucm(abi.CMCmdDisconnect, &abi.CMDisconnect{ID: id}, 0))
		} else {
			c.do(ucm(abi.CMCmdReject, &abi.CMReject{ID: id}, 0))
		}
	case 11:
		c.do(ucm(abi.CMCmdSetOption, &abi.CMSetOption{ID: id, Level: abi.CMOptionID, OptName: abi.CMOptionIDTOS, OptLen: 1}, 0, byte(rnd.Uint32())))
	}
}

// written is a command that writes an event of the program's own.
func written(id, status uint32) []byte {
	return ucm(abi.CMCmdWriteCMEvent, &abi.CMWriteCMEvent{ID: id, Event: abi.CMEventUser, Status: status}, 0)
}

// destroyed destroys id and returns how many of its events were read.
func (c *seer) destroyed(id uint32) uint32 {
	c.t.Helper()
	b, errno := c.do(ucm(abi.CMCmdDestroyID, &abi.CMDestroyID{Response: respAddr, ID: id}, 4))
	if errno != 0 {
		c.t.Fatal(errno)
	}
	return u32(b, 0)
}

// Waiting events are taken from the shelf in order, each once, and the last by asking. The descriptor is readable as
// long as there is an event.
func TestShelf(t *testing.T) {
	s := testServer(t)
	c := newSeer(t, s)
	id, other := c.make(1), c.make(2)
	readable := func() bool { return protocol.Ready(int(c.dev.Files[0].Fd())) }
	for i := range uint32(30) {
		c.must(written([]uint32{id, other}[i%2], i))
	}
	for i := range uint32(10) {
		if e, ok := c.take(); !ok || e.Status != i {
			t.Fatalf("event %d: %+v, %v", i, e.Status, ok)
		}
	}
	// The shelf is empty once, and full again after the event that is asked for then.
	if c.picked != 9 {
		t.Errorf("%d of 10 were taken off the shelf, which has %d slots; want 9", c.picked, protocol.ShelfSlots)
	}
	// A destroyed identifier has no more events; those that were taken count.
	if n := c.destroyed(other); n != 5 {
		t.Errorf("%d events of the second were read, want 5", n)
	}
	for i := uint32(10); i < 30; i += 2 {
		if !readable() {
			t.Fatal("nothing can be read, but there are events")
		}
		if e, ok := c.take(); !ok || e.Status != i || e.ID != id {
			t.Fatalf("event %d of id %d, want %d", e.Status, e.ID, i)
		}
	}
	if _, ok := c.take(); ok || readable() {
		t.Error("there is one event more")
	}
	if n := c.destroyed(id); n != 15 {
		t.Errorf("%d events of the first were read, want 15", n)
	}
}

// Threads take events from the shelf and ask for them, while others are written and withdrawn. Each event of a living
// identifier is delivered once and in order, none after its identifier's end.
func TestShelfRaces(t *testing.T) {
	s := testServer(t)
	c := newSeer(t, s)
	id := c.make(1)
	stop, picked := make(chan struct{}), make(chan []abi.CMEventResp)
	for range 2 {
		go func() {
			var got []abi.CMEventResp
			buf := make([]byte, protocol.ShelfStride)
			for {
				if n, ok := c.mail.Pick(buf); ok {
					var r protocol.Reply
					var e abi.CMEventResp
					if r.Parse(buf[:n]) != nil || len(r.Stores) != 1 {
						t.Error("nonsense on the shelf")
					} else {
						abi.Decode(r.Stores[0].Data, &e)
						got = append(got, e)
					}
					continue
				}
				select {
				case <-stop:
					picked <- got
					return
				default:
					time.Sleep(time.Microsecond) // others need the processor
				}
			}
		}()
	}
	c.asks = true
	const rounds = 60
	withdrawn := uint32(0) // of the others, those that nobody had
	for i := range uint32(rounds) {
		other := c.make(2)
		for j := range uint32(4) {
			c.must(written(id, 4*i+j))
			c.must(written(other, 0))
		}
		c.take()
		withdrawn += 4 - c.destroyed(other)
		c.ids = c.ids[:1]
	}
	close(stop)
	all := append(<-picked, <-picked...)
	shelved := len(all)
	for ok := true; ok; {
		_, ok = c.take()
	}
	all = append(all, c.events...)
	had := map[uint32]int{}
	others := uint32(0)
	for _, e := range all {
		if e.ID != id {
			others++
		} else if had[e.Status]++; had[e.Status] > 1 {
			t.Errorf("event %d was had twice", e.Status)
		}
	}
	if len(had) != 4*rounds || others != 4*rounds-withdrawn || shelved == 0 {
		t.Errorf("%d events of %d, and of the others %d of %d; %d off the shelf", len(had), 4*rounds, others, 4*rounds-withdrawn, shelved)
	}
	if n := c.destroyed(id); n != 4*rounds {
		t.Errorf("%d events were read, want %d", n, 4*rounds)
	}
}

// A client that writes random data to its shelf gets wrong events itself, and is still served.
func TestShelfScribbled(t *testing.T) {
	s := testServer(t)
	for range 5 {
		c := newSeer(t, s)
		id := c.make(1)
		c.asks = true
		mem, err := unix.Mmap(int(c.file.Fd()), 0, protocol.AheadSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		for i := range uint32(200) {
			c.must(written(id, i))
			if rand.IntN(3) == 0 {
				c.mail.Pick(c.buf)
				c.take()
			}
			at := []int{protocol.ShelfTaken, protocol.ShelfReady, protocol.AheadEvents, protocol.AheadRevisions + rand.IntN(8000)}[rand.IntN(4)]
			for range rand.IntN(8) {
				mem[at+rand.IntN(8)] = byte(rand.Uint32() & rand.Uint32() & rand.Uint32())
			}
		}
		if err := unix.Fallocate(int(c.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, protocol.AheadSize); err != nil {
			t.Fatal(err)
		}
		c.must(written(id, 0))
		c.must(written(id, 1))
		c.destroyed(id)
		unix.Munmap(mem)
	}
	open(t, s).must(portCommand(1))
}
