package vm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/client/gate"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/client/vm/vmproto"
	"vrdma.dev/vrdma/internal/device/memory"
)

// arena returns an agent's description of the pages for queues.
func arena(runs []vmproto.Run) vmproto.Frame {
	return vmproto.Frame{Kind: vmproto.Arena, Body: vmproto.RunsBody(vmproto.BellFrames, runs)}
}

const arenaPagesAtFirst = 300 // a doorbell page and the arm words, and some

// process introduces a program.
func process(t *testing.T, a *testAgent, id uint32) protocol.Token {
	t.Helper()
	w := a.hello(id, protocol.Hello{Kind: protocol.KindProcess})
	if w.Error != 0 || w.NumFDs != 1 {
		t.Fatalf("a process is answered %+v", w)
	}
	return w.Token
}

// TestDevice opens the device for a program in a guest. Its queues are pages of the guest: the daemon writes its
// sleep flag there and leaves the memory between them alone.
func TestDevice(t *testing.T) {
	ram := newTestRAM(t)
	for i := range ram.mem {
		ram.mem[i] = 0xee
	}
	p := testPort(t, ram)
	a := newTestAgent(t, p)
	if w := a.greet(vmproto.Version); w.Text != "" {
		t.Fatal(w.Text)
	}
	token := process(t, a, 1)
	w := a.hello(2, protocol.Hello{Kind: protocol.KindUverbs, Token: token}, arena(pages(64<<10, arenaPagesAtFirst)))
	if w.Error != 0 || w.NumFDs != 2 || w.ArenaSize != arenaSize {
		t.Fatalf("the device is answered %+v", w)
	}
	armed := ram.mem[64<<10+protocol.DoorbellArmed:][:4]
	for end := time.Now().Add(time.Minute); binary.NativeEndian.Uint32(armed) != 1; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the daemon does not say in the doorbell page that it sleeps")
		}
	}
	if between := ram.mem[64<<10+2*pageSize:][:pageSize]; bytes.ContainsFunc(between, func(r rune) bool { return r != 0xfffd }) {
		t.Error("the daemon wrote to a page that it was not given")
	}
	if p.Machine() != "machine" {
		t.Errorf("the port has machine %q", p.Machine())
	}
	// The program ends. Then nothing is left, and the memory is released with the agent.
	a.send(vmproto.Close, 1)
	a.awaitClosed(1, 2)
	a.u.Close()
	ram.awaitReleased(t, 1)
}

// TestLies: agents name addresses without memory, too little memory, or nothing.
func TestLies(t *testing.T) {
	ram := newTestRAM(t)
	a := newTestAgent(t, testPort(t, ram))
	a.greet(vmproto.Version)
	token := process(t, a, 1)
	good := pages(0, arenaPagesAtFirst)
	for i, runs := range [][]vmproto.Run{
		nil, pages(0, 4), {{Addr: 0, Size: 4 << 20}},
		append(slices.Clone(good), vmproto.Run{Addr: ramBase + ramSize - pageSize, Size: 2 * pageSize}),
		append(slices.Clone(good), vmproto.Run{Addr: ^uint64(0) - 2*pageSize + 1, Size: pageSize}),
		append([]vmproto.Run{{Addr: ramBase + 8, Size: pageSize}}, good...),
		append([]vmproto.Run{{Addr: ramBase, Size: 100}}, good...),
	} {
		w := a.hello(uint32(10+i), protocol.Hello{Kind: protocol.KindUverbs, Token: token}, arena(runs))
		if w.Error == 0 {
			t.Errorf("queues in %v are accepted", runs[:min(2, len(runs))])
		}
		a.await(vmproto.Close, uint32(10+i))
	}
	if w := a.hello(30, protocol.Hello{Kind: protocol.KindUverbs, Token: token}, arena(good)); w.Error != 0 {
		t.Errorf("after all the lies the truth is answered %+v", w)
	}
}

// TestRegion maps registered memory by the runs of an agent.
func TestRegion(t *testing.T) {
	ram := newTestRAM(t)
	s := memory.NewSpaceIn(backing{newRAM(ram)}, 0)
	defer s.Close()
	c := conversationOf(&guest{link: &link{closed: true}}, 1, nil, nil)
	const start = 0x7000_0000_1004
	extents := []protocol.Extent{{Start: start, Length: 2 * pageSize, Kind: protocol.ExtentOwn, Prot: 3}}
	at := func(addr uint64) []vmproto.Run {
		return []vmproto.Run{{Addr: addr + 4, Size: pageSize - 4}, {Addr: addr + 5*pageSize, Size: pageSize}, {Addr: addr + 2*pageSize, Size: 4}}
	}
	for _, test := range []struct {
		name string
		runs []vmproto.Run
		want error
	}{
		{"good", at(ramBase), nil}, {"at the end", at(ramBase + ramSize - 6*pageSize), nil},
		{"below", at(0), syscall.EFAULT}, {"above", at(ramBase + ramSize - 5*pageSize), syscall.EFAULT},
		{"too short", at(ramBase)[:2], syscall.ENOMEM}, {"none", nil, syscall.ENOMEM}, {"too long", []vmproto.Run{{Addr: ramBase, Size: 3 * pageSize}}, syscall.EFAULT},
		{"not at a page", []vmproto.Run{{Addr: ramBase, Size: 100}, {Addr: ramBase + 200, Size: 2*pageSize - 100}}, syscall.EINVAL},
	} {
		c.pin = &pin{runs: test.runs}
		out, number, done, err := c.Extents(extents)
		var r *memory.Region
		if err == nil {
			r, err = s.Map(start, 2*pageSize, out)
		}
		if !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", test.name, err, test.want)
		}
		if r == nil {
			continue
		}
		released := false
		r.OnRelease(number, func() { released = true; done() })
		var to memory.Span
		if !r.Span(pageSize-8, 8, &to) {
			t.Fatalf("%s: no span", test.name)
		}
		var from memory.Span
		from.Add([]byte("01234567"))
		if _, err := new(memory.Copier).Copy(&to, &from); err != nil {
			t.Error(err)
		}
		off := test.runs[0].Addr - ramBase
		if got := string(ram.mem[off+pageSize-8:][:4]) + string(ram.mem[off-4+5*pageSize:][:4]); got != "01234567" {
			t.Errorf("%s: the machine has %q", test.name, got)
		}
		if r.Release(); !released {
			t.Errorf("%s: nobody was told of the release", test.name)
		}
	}
}

// TestGreetings: another version is refused. A second agent ends the conversations of the first before its answer, and
// so does a malformed greeting.
func TestGreetings(t *testing.T) {
	ram := newTestRAM(t)
	p := testPort(t, ram)
	a := newTestAgent(t, p)
	if w := a.greet(vmproto.Version + 1); w.Text == "" {
		t.Error("another version is welcome")
	}
	a.greet(vmproto.Version)
	process(t, a, 1)
	a.write(vmproto.AppendHello(nil, vmproto.Greeting{Nonce: [16]byte{9}, Version: vmproto.Version}))
	a.await(vmproto.Close, 1)
	a.await(vmproto.Welcome, 0)
	process(t, a, 1)
	a.write(bytes.Repeat([]byte("nonsense"), 4))
	a.awaitEnd("nonsense does not end the connection")
	b := newTestAgent(t, p)
	b.greet(vmproto.Version)
	process(t, b, 1)
	p.Revoke()
	b.awaitEnd("a machine that is reset keeps its connection")
	ram.awaitReleased(t, 3)
}

// TestClose: an agent learns of the end of a conversation only when its session has ended, because until then the loop
// writes to the guest's pages. The same holds for the side that revokes the memory.
func TestClose(t *testing.T) {
	for name, end := range map[string]func(*testAgent, *Sockets){
		"device":  func(a *testAgent, _ *Sockets) { a.send(vmproto.Close, 2) },
		"process": func(a *testAgent, _ *Sockets) { a.send(vmproto.Close, 1) },
		"greeting": func(a *testAgent, _ *Sockets) {
			a.write(vmproto.AppendHello(nil, vmproto.Greeting{Nonce: [16]byte{9}, Version: vmproto.Version}))
		},
		"revoked": func(_ *testAgent, p *Sockets) { p.Revoke() },
	} {
		t.Run(name, func(t *testing.T) {
			ram := newTestRAM(t)
			p, e := testDaemon(t, ram)
			a := newTestAgent(t, p)
			a.greet(vmproto.Version)
			token := process(t, a, 1)
			if w := a.hello(2, protocol.Hello{Kind: protocol.KindUverbs, Token: token}, arena(pages(0, arenaPagesAtFirst))); w.Error != 0 {
				t.Fatalf("the device is answered %+v", w)
			}
			blocked, on := make(chan struct{}), make(chan struct{})
			goOn := sync.OnceFunc(func() { close(on) })
			defer goOn()
			go e.Do(func() {
				close(blocked)
				<-on
			})
			<-blocked
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				end(a, p)
				for f, err := a.r.Next(); err == nil; f, err = a.r.Next() {
					if f.Kind == vmproto.Close && f.ID == 2 || f.Kind == vmproto.Welcome {
						return
					}
				}
			}()
			select {
			case <-ended:
				t.Error("somebody is told of the end before the session has ended")
			case <-time.After(200 * time.Millisecond):
			}
			if ram.released.Load() != 0 {
				t.Error("the machine's memory is given back before the session has ended")
			}
			goOn()
			<-ended
		})
	}
}

// TestShrunk: QEMU removes memory that the daemon uses. At most the session ends.
func TestShrunk(t *testing.T) {
	ram := newTestRAM(t)
	p := testPort(t, ram)
	a := newTestAgent(t, p)
	a.greet(vmproto.Version)
	token := process(t, a, 1)
	ram.shrink(t)
	w := a.hello(2, protocol.Hello{Kind: protocol.KindUverbs, Token: token}, arena(pages(0, arenaPagesAtFirst)))
	if w.Error != int32(syscall.EFAULT) {
		t.Errorf("queues in memory that is not there are answered %+v", w)
	}
	a.awaitClosed(2)
	process(t, a, 3)

	ram = newTestRAM(t)
	shared := newRAM(ram)
	defer shared.drop()
	var runs atomic.Int64
	more := func(uint64) ([]vmproto.Run, error) { return pages(8<<20, 256), nil }
	queues, err := newArenaPages(shared, pages(0, arenaPagesAtFirst), false, &runs, nil, more)
	if err != nil {
		t.Fatal(err)
	}
	lost := 0
	queues.lost = func() { lost++ }
	if queues.Punch(protocol.SharedSize, pageSize); lost != 0 {
		t.Error("pages that are there are lost")
	}
	mapped, ready := runs.Load(), queues.Ready()
	ram.shrink(t)
	if queues.Punch(protocol.SharedSize, pageSize); lost != 1 {
		t.Error("nobody is told of pages that are lost")
	}
	if err := queues.Grow(pageSize); !errors.Is(err, syscall.EFAULT) || queues.Ready() != ready || runs.Load() != mapped {
		t.Errorf("more queues in memory that is not there: %v, %d bytes in %d runs, want %d in %d", err, queues.Ready(), runs.Load(), ready, mapped)
	}
	if queues.Close(); runs.Load() != 0 {
		t.Errorf("%d runs are left", runs.Load())
	}

	s := memory.NewSpaceIn(backing{shared.hold()}, 0)
	defer s.Close()
	if _, err := s.Map(0x1000, pageSize, []memory.Extent{{Start: 0x1000, Length: pageSize, Kind: memory.Own, Prot: 3, Offset: ramBase}}); err != syscall.EFAULT {
		t.Errorf("memory that is not there is registered: %v", err)
	}
}

// TestHeld: held frames have a limit, but returned events always go back.
func TestHeld(t *testing.T) {
	s := &sink{c: &conversation{}, held: true}
	for range mostHeld {
		if !s.Post([16]byte{}, 8) {
			t.Fatal("too few are held")
		}
	}
	if s.Post([16]byte{}, 8) {
		t.Error("there is no end")
	}
	s.give(make([]event, mostHeld))
	n := len(s.back)
	for range n {
		s.Withdraw()
	}
	for range n {
		if !s.Post([16]byte{}, 8) {
			t.Fatal("what was taken back does not go back")
		}
	}
}

// TestRecall: events that a program has not read come back before later ones, and events without a reader are sent
// again.
func TestRecall(t *testing.T) {
	server, agent := pipe(t)
	m := &guest{link: newLink(server), gate: new(gate.Gate)}
	c := conversationOf(m, 5, nil, nil)
	events, _, _ := c.OpenEvents()
	s := events.(*sink)
	r := vmproto.NewReader(agent)
	post := func(n byte) { s.Post([16]byte{n}, 8) }
	next := func(k vmproto.Kind, first byte) {
		t.Helper()
		f, err := r.Next()
		if err != nil || f.Kind != k || first != 0 && f.Body[0] != first {
			t.Fatalf("got %+v, %v, want kind %d of event %d", f, err, k, first)
		}
	}
	recall := func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.recall()
	}
	if recall() {
		t.Error("a recall although nothing was sent")
	}
	post(1)
	post(2)
	next(vmproto.Event, 1)
	next(vmproto.Event, 2)
	if !recall() {
		t.Error("no recall although events were sent")
	}
	post(3)
	c.takeReturned([]vmproto.Returning{{Handle: s.id, Event: [16]byte{2}, N: 8}})
	if !c.asked {
		t.Error("the recall has ended before all events are back")
	}
	c.takeReturned(nil)
	if c.asked {
		t.Error("the recall does not end")
	}
	for _, want := range []byte{2, 3} {
		if e, n := s.Withdraw(); n != 8 || e[0] != want {
			t.Errorf("got event %d of %d bytes, want %d", e[0], n, want)
		}
	}
	if _, n := s.Withdraw(); n != 0 {
		t.Error("there is one more")
	}
	post(3)
	c.release()
	next(vmproto.Event, 3)
	post(4)
	next(vmproto.Event, 4)
}

// pipe returns a connection with both its ends.
func pipe(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: t.TempDir() + "/s", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if a, err = net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr)); err != nil {
		t.Fatal(err)
	}
	if b, err = l.AcceptUnix(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	b.SetDeadline(time.Now().Add(time.Minute))
	return a, b
}

// FuzzLine: an agent sends any bytes. The daemon still answers the next agent.
func FuzzLine(f *testing.F) {
	f.Add(vmproto.Append(nil, vmproto.Open, 1, vmproto.OpenBody(vmproto.Person{})))
	f.Add(vmproto.Append(vmproto.Append(nil, vmproto.Open, 1, vmproto.OpenBody(vmproto.Person{})), vmproto.Pin, 1, vmproto.RunsBody(1, []vmproto.Run{{Addr: 1, Size: 1}})))
	f.Add(vmproto.Append(vmproto.Append(nil, vmproto.Open, 1, vmproto.OpenBody(vmproto.Person{})), vmproto.Message, 1, []byte("hello")))
	ram := newTestRAM(f)
	p := testPort(f, ram)
	f.Fuzz(func(t *testing.T, b []byte) {
		a := newTestAgent(t, p)
		a.greet(vmproto.Version)
		a.u.Write(b) // it may be cut off during that
		a.u.Close()
	})
}
