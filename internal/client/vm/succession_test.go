package vm

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/client/server"
	"vrdma.dev/vrdma/internal/client/vm/vmproto"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/state"
	"vrdma.dev/vrdma/internal/state/statetest"
)

// A world is a guest, and the daemon that serves it.
type world struct {
	t     *testing.T
	dir   string
	ram   testRAM
	d     *host
	front frontEnd
	bell  *net.UnixConn
	a     *testAgent
	seen  []vmproto.Frame // that the test has not looked at
	runs  uint64          // where the next pages are
	pin   uint32
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), ram: newTestRAM(t)}
	w.d = makeDaemon(t, w.dir, nil)
	if err := w.d.p.Open(); err != nil {
		t.Fatal(err)
	}
	go w.d.serve()
	w.bell = dial(t, w.d.p, BellSocket)
	w.front = newFrontEnd(t, w.d.p)
	w.front.table(w.ram, 1)
	w.a = newTestAgent(t, w.d.p)
	if a := w.a.greet(vmproto.Version); a.Text != "" {
		t.Fatal(a.Text)
	}
	return w
}

// inherited are the sockets of a daemon.
type inherited map[string]int

func (i inherited) Listener(path string) (*os.File, bool) {
	fd, ok := i[path]
	if !ok {
		return nil, false
	}
	return duplicate(fd), false
}

func duplicate(fd int) *os.File {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		panic(err)
	}
	return os.NewFile(uintptr(n), "inherited")
}

// frozenState is what a daemon sends to the next one.
type frozenState struct {
	Server *server.State `cbor:"1,keyasint,omitempty"`
	Guests []State       `cbor:"2,keyasint,omitempty"`
}

// stop freezes the daemon and calls f on its loop with the state.
func (d *host) stop(f func(b []byte, files []*os.File)) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	guests, err := Pause(ctx, []*Sockets{d.p})
	if err != nil {
		d.t.Fatal(err)
	}
	defer guests.Resume()
	frozen, err := d.s.Freeze(ctx)
	if err != nil {
		d.t.Fatal(err)
	}
	defer frozen.Resume()
	if err := guests.Freeze(ctx); err != nil {
		d.t.Fatal(err)
	}
	if err := d.e.Halt(ctx, func() error {
		var st frozenState
		var fds []int
		var err error
		if st.Server, fds, err = frozen.Snapshot(); err != nil {
			return err
		}
		fds = slices.Clone(fds)
		if st.Guests, err = guests.Snapshot(func(fd int) server.FD {
			fds = append(fds, fd)
			return server.FD(len(fds))
		}); err != nil {
			return err
		}
		b, err := state.Marshal(st)
		if err != nil {
			return err
		}
		var files []*os.File
		for _, fd := range fds {
			files = append(files, duplicate(fd))
		}
		f(b, files)
		return nil
	}); err != nil {
		d.t.Fatal(err)
	}
}

// fail freezes the daemon for a next one that ends.
func (w *world) fail() {
	w.t.Helper()
	w.d.stop(func(_ []byte, files []*os.File) {
		for _, f := range files {
			f.Close()
		}
	})
}

// upgrade replaces the daemon.
func (w *world) upgrade() {
	w.t.Helper()
	old := w.d
	sockets, _ := old.s.Inherited()
	next := makeDaemon(w.t, w.dir, inherited(sockets))
	taken, dead, gone := make(chan error, 1), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		old.stop(func(b []byte, files []*os.File) {
			taken <- next.take(b, files)
			<-dead // a process that has ended
		})
	}()
	w.t.Cleanup(func() { // before the end of either
		w.a.u.Close()
		w.front.u.Close()
		w.bell.Close()
		close(dead)
		<-gone
	})
	select {
	case err := <-taken:
		if err != nil {
			w.t.Fatal(err)
		}
	case <-gone:
		w.t.FailNow()
	}
	w.d = next
}

// take continues with the state of another daemon.
func (d *host) take(b []byte, files []*os.File) error {
	var st frozenState
	if err := state.Unmarshal(b, &st); err != nil {
		return err
	}
	var commit, serve func()
	var guests *Thawed
	var err error
	if perr := d.e.Do(func() {
		if guests, err = Thaw([]*Sockets{d.p}, st.Guests, files); err != nil {
			return
		}
		if commit, serve, err = d.s.Thaw(st.Server, files, guests); err == nil {
			commit()
		}
	}); perr != nil {
		err = perr
	}
	if err != nil {
		d.served <- nil
		return err
	}
	go d.serve()
	serve()
	guests.Continue(func(_ string, e error) { err = e })
	return err
}

// next returns the first frame of a kind for id. Others wait.
func (w *world) next(k vmproto.Kind, id uint32) vmproto.Frame {
	w.t.Helper()
	for i, f := range w.seen {
		if f.Kind == k && f.ID == id {
			w.seen = slices.Delete(w.seen, i, i+1)
			return f
		}
	}
	for {
		f, err := w.a.r.Next()
		if err != nil {
			w.t.Fatalf("no frame of kind %d for %d: %v", k, id, err)
		}
		if f.Kind == k && f.ID == id {
			return f
		}
		f.Body = bytes.Clone(f.Body)
		w.seen = append(w.seen, f)
	}
}

// none reports an error if a frame of a kind for id waits, before the answer to a request of another conversation.
func (w *world) none(k vmproto.Kind, id uint32) {
	w.t.Helper()
	if slices.ContainsFunc(w.seen, func(f vmproto.Frame) bool { return f.Kind == k && f.ID == id }) {
		w.t.Errorf("there is a frame of kind %d for %d", k, id)
	}
}

// pages are n pages that nothing else has.
func (w *world) pages(n int) []vmproto.Run {
	const shared = 10 << 20 // for pins, which have no contents here
	if n == arenaPagesAtFirst && w.runs > shared {
		w.runs = 0
	}
	r := pages(w.runs, n)
	if last := r[len(r)-1]; last.Addr+last.Size > ramBase+ramSize {
		r = pages(shared, n)
	}
	w.runs = r[len(r)-1].Addr + r[len(r)-1].Size - ramBase + pageSize
	return r
}

// message sends a greeting or a request.
func (w *world) message(id uint32, b []byte) {
	w.t.Helper()
	w.a.send(vmproto.Message, id, b)
}

func (w *world) hello(id uint32, h protocol.Hello) {
	w.t.Helper()
	h.Magic, h.Protocol, h.Program = protocol.Magic, protocol.Version, "test"
	w.message(id, h.Append(nil))
}

func (w *world) open(id uint32) {
	w.t.Helper()
	w.a.send(vmproto.Open, id, vmproto.OpenBody(vmproto.Person{Pid: 77}))
}

// welcome reads the answer to a greeting.
func (w *world) welcome(id uint32) protocol.Welcome {
	w.t.Helper()
	a, err := protocol.ParseWelcome(w.next(vmproto.Message, id).Body)
	if err != nil || a.Error != 0 {
		w.t.Fatalf("the answer to a greeting: %+v, %v", a, err)
	}
	return a
}

const respAddr = 0x7000_0000_1000

// legacy builds a command.
func legacy[T abi.Struct](cmd uint32, req *T, out int) []byte {
	body := abi.Encode(nil, req)
	for len(body)%4 != 0 {
		body = append(body, 0)
	}
	hdr := abi.CmdHeader{Command: cmd, InWords: uint16((len(body) + 8) / 4), OutWords: uint16((out + 3) / 4)}
	return append(abi.Encode(nil, &hdr), body...)
}

// ask sends a command.
func (w *world) ask(id uint32, command []byte, extents ...protocol.Extent) {
	w.t.Helper()
	r := protocol.Request{Op: protocol.OpCommand, Command: command, Extents: extents}
	w.message(id, r.Append(nil))
}

// answer reads the reply, which must be a success, and returns what it stores.
func (w *world) answer(id uint32) []byte {
	w.t.Helper()
	var r protocol.Reply
	if err := r.Parse(w.next(vmproto.Message, id).Body); err != nil || r.Error != 0 {
		w.t.Fatalf("the reply for %d: %v, %v", id, syscall.Errno(r.Error), err)
	}
	for _, s := range r.Stores {
		if s.Address == respAddr {
			return bytes.Clone(s.Data)
		}
	}
	return nil
}

func (w *world) must(id uint32, command []byte, extents ...protocol.Extent) []byte {
	w.t.Helper()
	w.ask(id, command, extents...)
	return w.answer(id)
}

func u32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}

// A program is a process and its device.
type program struct {
	w           *world
	process, id uint32
	async       uint32 // number of its handle for events
	pd          uint32
}

func (w *world) program(id uint32) *program {
	w.t.Helper()
	p := &program{w: w, process: id, id: id + 1}
	w.open(p.process)
	w.hello(p.process, protocol.Hello{Kind: protocol.KindProcess})
	token := w.welcome(p.process).Token
	w.open(p.id)
	w.a.send(vmproto.Arena, p.id, vmproto.RunsBody(0, w.pages(arenaPagesAtFirst)))
	w.hello(p.id, protocol.Hello{Kind: protocol.KindUverbs, Token: token})
	w.welcome(p.id)
	w.must(p.id, legacy(abi.CmdGetContext, &abi.GetContext{Response: respAddr}, 8))
	n, err := vmproto.ParseNumber(w.next(vmproto.Handle, p.id).Body)
	if err != nil {
		w.t.Fatal(err)
	}
	p.async = uint32(n)
	p.pd = u32(w.must(p.id, legacy(abi.CmdAllocPD, &abi.AllocPD{Response: respAddr}, 4)))
	return p
}

const start = 0x7000_1000_0000

// register sends a registration of two pages, which the agent has pinned as w.pin.
func (p *program) register() {
	p.w.t.Helper()
	p.w.pin++
	p.w.a.send(vmproto.Pin, p.id, vmproto.RunsBody(p.w.pin, p.w.pages(2)))
	p.w.ask(p.id, legacy(abi.CmdRegMR, &abi.RegMR{Response: respAddr, Start: start, HCAVA: start, Length: 2 * pageSize, PDHandle: p.pd, AccessFlags: 1}, 12),
		protocol.Extent{Start: start, Length: 2 * pageSize, Kind: protocol.ExtentOwn, Prot: 3})
}

func (p *program) deregister(mr uint32) {
	p.w.t.Helper()
	p.w.must(p.id, legacy(abi.CmdDeregMR, &abi.DeregMR{MRHandle: mr}, 0))
}

func (p *program) cq() uint32 {
	p.w.t.Helper()
	return u32(p.w.must(p.id, legacy(abi.CmdCreateCQ, &abi.CreateCQ{Response: respAddr, CQE: 10, CompChannel: -1}, 24)))
}

// event makes the device post an event to every program.
func (w *world) event() {
	gids := slices.Clone(w.d.n.Device.Face().GIDs)
	w.d.e.Do(func() {
		f := *w.d.n.Device.Face()
		f.GIDs = append(gids, nic.GIDEntry{GID: ib.GID{15: byte(len(gids))}, NetDev: "lo"})
		w.d.n.Device.SetFace(f)
	})
}

// changes are what can happen between two steps of a guest.
func changes(t *testing.T, f func(t *testing.T, w *world, change func())) {
	for name, change := range map[string]func(*world){
		"upgrade": (*world).upgrade, "failure": (*world).fail, "upgrades": func(w *world) { w.upgrade(); w.fail(); w.upgrade() },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			f(t, w, func() { t.Helper(); change(w) })
		})
	}
}

// TestSuccession: a program's queues, registered memory and events continue in the next daemon, and it ends there as here.
func TestSuccession(t *testing.T) {
	changes(t, func(t *testing.T, w *world, change func()) {
		p := w.program(1)
		p.register()
		mr := u32(w.answer(p.id))
		cq := p.cq()
		w.event()
		change()
		w.next(vmproto.Event, p.async)
		w.event()
		w.next(vmproto.Event, p.async)
		if m := w.d.p.Machine(); m != "machine" {
			t.Errorf("the machine is %q", m)
		}
		p.deregister(mr)
		w.next(vmproto.Unpin, w.pin)
		p.register()
		w.answer(p.id)
		q := w.program(20)
		change()
		w.bell.Write([]byte{1})
		w.a.send(vmproto.Close, p.process)
		for _, id := range []uint32{p.process, p.id} {
			w.next(vmproto.Close, id)
		}
		w.next(vmproto.Unpin, w.pin)
		_ = cq
		q.cq()
		change()
		q.cq()
		w.a.send(vmproto.Close, q.process)
		w.next(vmproto.Close, q.id)
	})
}

// TestSuccessionMidway changes the daemon in the middle of frames, between a pin and its request, and while more pages for queues and unread
// events are asked for.
func TestSuccessionMidway(t *testing.T) {
	changes(t, func(t *testing.T, w *world, change func()) {
		p := w.program(1)
		t.Run("frame", func(t *testing.T) {
			r := protocol.Request{Op: protocol.OpCommand, Command: legacy(abi.CmdAllocPD, &abi.AllocPD{Response: respAddr}, 4)}
			b := vmproto.Append(nil, vmproto.Message, p.id, r.Append(nil))
			for i := range 3 {
				at := 1 + i*(len(b)-2)/2
				w.a.write(b[:at])
				change()
				w.a.write(b[at:])
				w.answer(p.id)
			}
		})
		t.Run("pin", func(t *testing.T) {
			w.pin++
			w.a.send(vmproto.Pin, p.id, vmproto.RunsBody(w.pin, w.pages(1)))
			change()
			w.pin-- // register sends it again, with another page
			p.register()
			change()
			mr := u32(w.answer(p.id))
			p.deregister(mr)
			w.next(vmproto.Unpin, w.pin)
		})
		t.Run("pin of another request", func(t *testing.T) {
			w.pin++
			w.a.send(vmproto.Pin, p.id, vmproto.RunsBody(w.pin, w.pages(2)))
			change()
			w.must(p.id, legacy(abi.CmdAllocPD, &abi.AllocPD{Response: respAddr}, 4))
			w.next(vmproto.Unpin, w.pin)
		})
		t.Run("recall", func(t *testing.T) {
			cq := p.cq()
			w.event()
			w.next(vmproto.Event, p.async)
			w.ask(p.id, legacy(abi.CmdDestroyCQ, &abi.DestroyCQ{Response: respAddr, CQHandle: cq}, 8))
			w.next(vmproto.Recall, p.id)
			change()
			w.event() // waits for the answer
			w.a.send(vmproto.Returned, p.id, vmproto.ReturnedBody([]vmproto.Returning{{Handle: p.async, Event: [16]byte{0: 9}, N: 16}}))
			change()
			w.none(vmproto.Event, p.async)
			w.a.send(vmproto.Returned, p.id)
			w.answer(p.id)
			if f := w.next(vmproto.Event, p.async); f.Body[0] != 9 {
				t.Errorf("the first event is %x, want the one that came back", f.Body)
			}
			if f := w.next(vmproto.Event, p.async); f.Body[0] == 9 {
				t.Error("the event is there twice")
			}
			p.cq()
			w.none(vmproto.Event, p.async)
		})
		t.Run("queues", func(t *testing.T) {
			grows := false
			for range 12 { // each has a ring of 256 KiB
				w.ask(p.id, legacy(abi.CmdCreateCQ, &abi.CreateCQ{Response: respAddr, CQE: 4000, CompChannel: -1}, 24))
				f, err := w.a.r.Next()
				if err == nil && f.Kind == vmproto.Grow {
					grows = true
					n, _ := vmproto.ParseNumber(f.Body)
					w.a.send(vmproto.Grown, p.id, vmproto.RunsBody(0, w.pages(int(n/pageSize))))
					w.a.send(vmproto.Grown, p.id, vmproto.RunsBody(0, nil))
					w.answer(p.id)
					change()
				} else if err != nil || f.Kind != vmproto.Message {
					t.Fatalf("got %+v, %v", f, err)
				}
			}
			if !grows {
				t.Error("no more pages were asked for")
			}
		})
	})
}

// TestSuccessionGreetings changes the daemon between the steps of greetings: of an agent, and of programs. A tool's connection ends.
func TestSuccessionGreetings(t *testing.T) {
	changes(t, func(t *testing.T, w *world, change func()) {
		w.open(1)
		change()
		w.hello(1, protocol.Hello{Kind: protocol.KindProcess})
		token := w.welcome(1).Token
		change()
		w.open(2)
		runs := w.pages(arenaPagesAtFirst)
		w.a.send(vmproto.Arena, 2, vmproto.RunsBody(0, runs[:100]))
		change()
		w.a.send(vmproto.Arena, 2, vmproto.RunsBody(0, runs[100:]))
		w.hello(2, protocol.Hello{Kind: protocol.KindUverbs, Token: token})
		change()
		w.welcome(2)
		w.open(3)
		w.hello(3, protocol.Hello{Kind: protocol.KindRDMACM, Token: token})
		w.welcome(3)
		w.open(4)
		w.hello(4, protocol.Hello{Kind: protocol.KindNetlink})
		w.welcome(4)
		w.open(5)
		w.hello(5, protocol.Hello{Kind: protocol.KindControl})
		w.must(2, legacy(abi.CmdGetContext, &abi.GetContext{Response: respAddr}, 8))
		w.upgrade()
		w.next(vmproto.Close, 5)
		const nldevGet = 0x1401 // RDMA_NL_NLDEV, RDMA_NLDEV_CMD_GET
		request := binary.NativeEndian.AppendUint32(nil, 16)
		request = binary.NativeEndian.AppendUint32(request, 3<<16|nldevGet) // NLM_F_REQUEST, NLM_F_DUMP
		w.message(4, append(request, make([]byte, 8)...))
		if f := w.next(vmproto.Message, 4); len(f.Body) < 16 {
			t.Errorf("a netlink socket answers %x", f.Body)
		}
		w.a.send(vmproto.Close, 3)
		w.next(vmproto.Close, 3)
		w.open(5) // its number is free
		w.hello(5, protocol.Hello{Kind: protocol.KindProcess})
		w.welcome(5)

		// Another agent greets, and the first one's programs end in another daemon.
		hello := vmproto.AppendHello(nil, vmproto.Greeting{Nonce: [16]byte{7}, Version: vmproto.Version, Name: "second"})
		w.a.write(hello[:40])
		change()
		w.a.write(hello[40:])
		for {
			f, err := w.a.r.Next()
			if err != nil {
				t.Fatal(err)
			}
			if f.Kind == vmproto.Welcome {
				break
			}
		}
		change()
		w.seen = nil
		w.program(1)
		if m := w.d.p.Machine(); m != "second" {
			t.Errorf("the machine is %q", m)
		}
	})
}

// TestSuccessionEnds: programs, agents and machines that end at the moment of an upgrade.
func TestSuccessionEnds(t *testing.T) {
	for name, end := range map[string]func(w *world, p *program){
		"program": func(w *world, p *program) { w.a.send(vmproto.Close, p.process) },
		"device":  func(w *world, p *program) { w.a.send(vmproto.Close, p.id) },
		"agent":   func(w *world, p *program) { w.a.u.Close() },
		"greeting": func(w *world, p *program) {
			w.a.write(vmproto.AppendHello(nil, vmproto.Greeting{Nonce: [16]byte{7}, Version: vmproto.Version, Name: "second"}))
		},
		"nonsense": func(w *world, p *program) { w.a.write(bytes.Repeat([]byte("nonsense"), 4)) },
		"card":     func(w *world, p *program) { w.front.u.Close() },
		"bell":     func(w *world, p *program) { w.bell.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			for i := range 2 {
				w := newWorld(t)
				p := w.program(1)
				p.register()
				w.answer(p.id)
				end(w, p)
				time.Sleep(time.Duration(i*i) * 50 * time.Microsecond)
				w.tryUpgrade()
				switch name {
				case "program":
					w.next(vmproto.Close, p.process)
					w.next(vmproto.Close, p.id)
					w.next(vmproto.Unpin, w.pin)
				case "device":
					w.next(vmproto.Close, p.id)
				case "greeting":
					for f, err := w.a.r.Next(); f.Kind != vmproto.Welcome; f, err = w.a.r.Next() {
						if err != nil {
							t.Fatal(err)
						}
					}
				default: // all of them end
					eventually(t, "the end of the guest", func() bool { return w.d.p.Machine() == "" })
					switch name {
					case "card":
						w.front = newFrontEnd(t, w.d.p)
						w.front.table(w.ram, 1)
					case "bell":
						w.bell = dial(t, w.d.p, BellSocket)
						eventually(t, "the bell port is connected", func() bool {
							w.d.p.mu.Lock()
							defer w.d.p.mu.Unlock()
							return w.d.p.bells != nil
						})
					}
					w.a.u.Close()
					w.a = newTestAgent(t, w.d.p)
					w.a.greet(vmproto.Version)
				}
				w.seen = nil
				w.program(30)
			}
		})
	}
}

// tryUpgrade upgrades the daemon, unless a session that is ending prevents it.
func (w *world) tryUpgrade() {
	w.t.Helper()
	for range 1000 {
		if w.d.quiet() {
			break
		}
		time.Sleep(time.Millisecond)
	}
	w.upgrade()
}

// quiet reports whether the daemon can be frozen.
func (d *host) quiet() bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	guests, err := Pause(ctx, []*Sockets{d.p})
	if err != nil {
		return false
	}
	defer guests.Resume()
	frozen, err := d.s.Freeze(ctx)
	if err != nil {
		return false
	}
	defer frozen.Resume()
	if guests.Freeze(ctx) != nil {
		return false
	}
	return d.e.Halt(ctx, func() error {
		_, _, err := frozen.Snapshot()
		if err == nil {
			_, err = guests.Snapshot(func(int) server.FD { return 1 })
		}
		return err
	}) == nil
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}

// TestSuccessionMemory: programs use memory that QEMU has taken out of the table, also after an upgrade, and it is released when they end.
func TestSuccessionMemory(t *testing.T) {
	changes(t, func(t *testing.T, w *world, change func()) {
		p := w.program(1)
		p.register()
		mr := u32(w.answer(p.id))
		first, second := w.ram, newTestRAM(t)
		w.front.table(second, 1)
		change()
		p.cq() // rings in the first
		p.deregister(mr)
		w.next(vmproto.Unpin, w.pin)
		q := w.program(20) // in the second, which is searched first
		armed := second.mem[pages(0, 2)[0].Addr-ramBase:]
		_ = armed
		change()
		q.cq()
		p.cq()
		w.d.p.mu.Lock()
		tables := len(*w.d.p.machine.ram.list.Load())
		w.d.p.mu.Unlock()
		if tables != 2 {
			t.Errorf("there are %d tables", tables)
		}
		for _, o := range []*program{p, q} {
			w.a.send(vmproto.Close, o.process)
			w.next(vmproto.Close, o.process)
			w.next(vmproto.Close, o.id)
		}
		eventually(t, "one table is left", func() bool {
			w.d.p.mu.Lock()
			defer w.d.p.mu.Unlock()
			return len(*w.d.p.machine.ram.list.Load()) == 1
		})
		_ = first
	})
}

// TestSuccessionBacklog: an agent that reads slowly gets every byte once, in order, over many daemons.
func TestSuccessionBacklog(t *testing.T) {
	w := newWorld(t)
	p := w.program(1)
	w.open(50)
	w.hello(50, protocol.Hello{Kind: protocol.KindNetlink})
	w.welcome(50)
	total := 0
	for i := range 6 {
		for range 1500 { // much more than the sockets hold
			w.event()
			total++
		}
		if i%2 == 0 {
			w.upgrade()
		} else {
			w.fail()
		}
	}
	for range total {
		w.next(vmproto.Event, p.async)
	}
	p.cq()
	w.none(vmproto.Event, p.async)
}

// TestSuccessionRandom: a guest does random things, and daemons change at random moments beside it.
func TestSuccessionRandom(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			w := newWorld(t)
			var programs []*program
			mrs := map[*program][]uint32{}
			id := uint32(1)
			for range 40 {
				if rng.IntN(6) == 0 {
					w.upgrade()
				} else if rng.IntN(6) == 0 {
					w.fail()
				}
				if len(programs) == 0 || len(programs) < 3 && rng.IntN(4) == 0 {
					programs = append(programs, w.program(id))
					id += 2
					continue
				}
				i := rng.IntN(len(programs))
				p := programs[i]
				switch rng.IntN(6) {
				case 0:
					w.event()
				case 1:
					p.register()
					if rng.IntN(2) == 0 {
						w.upgrade()
					}
					mrs[p] = append(mrs[p], u32(w.answer(p.id)))
				case 2:
					if l := mrs[p]; len(l) > 0 {
						p.deregister(l[0])
						mrs[p] = l[1:]
					}
				case 3:
					p.cq()
				case 4:
					w.bell.Write([]byte{1})
				case 5:
					w.a.send(vmproto.Close, p.process)
					if rng.IntN(2) == 0 {
						w.tryUpgrade()
					}
					w.next(vmproto.Close, p.process)
					w.next(vmproto.Close, p.id)
					programs = slices.Delete(programs, i, i+1)
				}
			}
		})
	}
}

func TestState(t *testing.T) {
	statetest.Tags(t, State{})
	statetest.Golden(t, "machine", statetest.Filled[State]())
}

// FuzzThaw: any state is restored or refused, and nothing is left of it.
func FuzzThaw(f *testing.F) {
	b, err := state.Marshal(statetest.Filled[State]())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	for _, st := range []State{
		{Listeners: make([]server.FD, 3)},
		{Listeners: []server.FD{1, 2, 3}, Line: &LineState{Socket: 4, Unread: []byte{1}}, Guest: &GuestState{Tables: []TableState{{}}, Conversations: []ConversationState{
			{ID: 1, Near: 5, Far: 6, Queue: []RequestState{{Message: []byte("x"), Pin: &PinState{ID: 1, Runs: []RunState{{Addr: 4096, Size: 4096}}}}}, Sinks: []SinkState{{ID: 1, Back: []EventState{{Event: []byte{1}}}}}},
		}}},
	} {
		st.NIC = "default"
		b, err := state.Marshal(st)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	d := makeDaemon(f, f.TempDir(), nil)
	go d.serve()
	f.Fuzz(func(t *testing.T, b []byte) {
		var st State
		if state.Unmarshal(b, &st) != nil {
			return
		}
		st.NIC = d.n.Name
		var files []*os.File
		for i := range 8 {
			kind := unix.SOCK_STREAM
			if i >= 4 {
				kind = unix.SOCK_SEQPACKET
			}
			fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
			if err != nil {
				t.Fatal(err)
			}
			unix.Close(fds[1])
			files = append(files, os.NewFile(uintptr(fds[0]), "end"))
		}
		for i := range 3 {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fmt.Sprintf("%s/%d", t.TempDir(), i), Net: "unix"})
			if err != nil {
				t.Fatal(err)
			}
			old := files[i]
			if files[i], err = l.File(); err != nil {
				t.Fatal(err)
			}
			old.Close()
			l.Close()
		}
		p := New(d.p.cfg)
		thawed, err := Thaw([]*Sockets{p}, []State{st}, files)
		if err == nil {
			thawed.Continue(func(string, error) {})
		}
		p.Close()
		for _, f := range files {
			if f != nil {
				f.Close()
			}
		}
	})
}
