package vhostuser

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/state"
	"vrdma.dev/vrdma/internal/state/statetest"
	"vrdma.dev/vrdma/internal/testkit/leak"
)

// copies are duplicates of descriptors, as another process receives them.
type copies struct {
	t    *testing.T
	list []int
}

func (c *copies) add(fd int) uint32 {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		c.t.Errorf("descriptor %d: %v", fd, err)
	}
	c.list = append(c.list, n)
	return uint32(len(c.list))
}

func (c *copies) file(i uint32) (int, error) {
	if i == 0 || int(i) > len(c.list) || c.list[i-1] < 0 {
		return -1, fmt.Errorf("there is no descriptor %d", i)
	}
	fd := c.list[i-1]
	c.list[i-1] = -1
	return fd, nil
}

// hold pauses a Conn and holds its rings.
func hold(t *testing.T, c *Conn) (resume func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	unpause, err := c.Pause(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range c.rings {
		if err := r.Hold(ctx); err != nil {
			t.Fatal(err)
		}
	}
	return func() {
		for _, r := range c.rings {
			r.End()
		}
		unpause()
	}
}

// handOver replaces the back end of f by one that continues.
func (f *frontEnd) handOver(d *Device) {
	f.t.Helper()
	old, served := f.conn, f.served
	resume := hold(f.t, old)
	fds := copies{t: f.t}
	made, err := old.Freeze(fds.add)
	if err != nil {
		f.t.Fatal(err)
	}
	b, err := state.Marshal(made)
	if err != nil {
		f.t.Fatal(err)
	}
	var st ConnState
	if err := state.Unmarshal(b, &st); err != nil {
		f.t.Fatal(err)
	}
	raw, err := old.socket.SyscallConn()
	if err != nil {
		f.t.Fatal(err)
	}
	var socket net.Conn
	raw.Control(func(fd uintptr) {
		n, _ := fds.file(fds.add(int(fd)))
		file := os.NewFile(uintptr(n), "socket")
		socket, err = net.FileConn(file)
		file.Close()
	})
	if err != nil {
		f.t.Fatal(err)
	}
	c, start, err := Thaw(socket.(*net.UnixConn), d, &st, fds.file)
	if err != nil {
		f.t.Fatal(err)
	}
	// The old process ends, and touches nothing any more.
	for _, r := range old.rings {
		r.started = false
	}
	old.Close()
	resume()
	<-served
	f.conn = c
	again := make(chan error, 1)
	f.served = again
	go func() {
		again <- c.Continue(start)
		close(again)
	}()
	front := f.socket
	f.t.Cleanup(func() {
		front.Close()
		select {
		case <-again:
		case <-time.After(wait):
			f.t.Error("the back end does not end")
		}
	})
}

// TestSuccession: a front end and a driver notice nothing when the back end is replaced between any two requests, and
// while chains are under way.
func TestSuccession(t *testing.T) {
	for name, features := range map[string]uint64{"plain": 0, "event index": RingEventIdx | RingIndirect} {
		t.Run(name, func(t *testing.T) {
			d := func() *Device { return echo(Device{Rings: 2, Queues: 1}) }
			f := connect(t, d())
			f.step = func() { f.handOver(d()) }
			f.start(2, features)
			f.step = nil
			before := leak.Descriptors(t)
			r := f.rings[1]
			for i := range 5 * ringNum { // round the ring
				f.heap = 0x10000
				text := bytes.Repeat([]byte{byte(i)}, 100+i)
				out, b := f.alloc(len(text))
				in, answer := f.alloc(len(text))
				copy(b, text)
				head := uint16(2 * i % ringNum)
				r.write(int(head), desc{out, uint32(len(text)), descNext, head + 1})
				r.write(int(head)+1, desc{in, uint32(len(text)), descWrite, 0})
				if i%5 == 0 {
					f.handOver(d())
				}
				r.add(head)
				if i%3 == 0 {
					f.handOver(d())
				}
				if got, n := r.wait(); got != uint32(head) || n != uint32(len(text)) || !bytes.Equal(answer, text) {
					t.Fatalf("chain %d of %d bytes came back with %d: want chain %d with %d", got, n, answer[0], head, len(text))
				}
			}
			f.step = func() { f.handOver(d()) }
			if base := le.Uint32(f.ask(getVringBase, 0, u32(1, 0), true)[4:]); base != 5*ringNum {
				t.Errorf("the ring stopped at %d: want %d", base, 5*ringNum)
			}
			f.table()
			f.step = nil
			for end := time.Now().Add(wait); leak.Descriptors(t) > before; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("%d descriptors are open, before %d", leak.Descriptors(t), before)
				}
			}
		})
	}
}

// TestResume: a back end whose successor fails goes on. Requests and kicks of the meantime wait.
func TestResume(t *testing.T) {
	f := connect(t, echo(Device{Rings: 2, Queues: 1}))
	f.start(2, 0)
	r := f.rings[1]
	for i := range 3 {
		resume := hold(t, f.conn)
		fds := copies{t: t}
		if _, err := f.conn.Freeze(fds.add); err != nil {
			t.Fatal(err)
		}
		closeAll(fds.list)
		out, _ := f.alloc(8)
		in, _ := f.alloc(8)
		r.write(0, desc{out, 8, descNext, 1})
		r.write(1, desc{in, 8, descWrite, 0})
		r.add(0)
		f.ask(setVringEnable, 0, u32(0, uint32(i)%2), false)
		if load16(f.ram[r.used:], 2) != r.seen {
			t.Error("a ring that is held has moved")
		}
		resume()
		r.wait()
	}
	f.table()
}

// TestPauseWaits: without an end of the request the pause fails.
func TestPauseWaits(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	d := echo(Device{Rings: 2, Queues: 1, Announce: func([6]byte) { close(entered); <-leave }})
	f := connect(t, d)
	f.ask(sendRARP, 0, make([]byte, 8), false)
	<-entered
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if _, err := f.conn.Pause(ctx); err == nil {
		t.Error("paused during a request")
	}
	close(leave)
	hold(t, f.conn)()
	f.start(2, 0)
}

// whole has a value in each field of a ConnState.
func whole() *ConnState {
	return &ConnState{
		Features: NetMTU, Protocol: protocolMQ,
		Log:     &LogState{Size: 64, Offset: 8, File: 4},
		Regions: []RegionState{{Guest: ramBase, Size: ramSize, User: ramUser, Offset: 4096, Again: 1, File: 1}},
		Rings:   []RingState{{Index: 1, Num: ringNum, Desc: ramUser, Avail: ramUser + 0x400, Used: ramUser + 0x800, Base: 7, Enabled: true, Kick: 2, Call: 3, Logged: true, LogAt: ramBase}},
	}
}

func TestStateFormat(t *testing.T) {
	statetest.Tags(t, ConnState{})
	statetest.Complete(t, whole())
	statetest.Golden(t, "conn", whole()) // of before there was a log
	statetest.Golden(t, "logged", whole())
}

// FuzzThaw: no state breaks the reader, whose memory is a file of ramSize.
func FuzzThaw(f *testing.F) {
	b, err := state.Marshal(whole())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		var st ConnState
		if state.Unmarshal(b, &st) != nil {
			return
		}
		a, o := socketPair(t)
		a.Close()
		c, start, err := Thaw(o, echo(Device{Features: NetMTU, Rings: 2, Queues: 1}), &st, func(i uint32) (int, error) {
			if i == 1 || i == 4 {
				return unix.FcntlInt(memfd(t, ramSize).Fd(), unix.F_DUPFD_CLOEXEC, 0)
			}
			return unix.Eventfd(0, unix.EFD_CLOEXEC)
		})
		if err == nil {
			c.Continue(start) // the front end has gone
		}
	})
}

// While a ring is held, its kicks stay in the eventfd, which the next daemon reads. Afterwards the ring gets them.
func TestHeldKicks(t *testing.T) {
	f := connect(t, echo(Device{Rings: 2, Queues: 1}))
	f.start(2, RingEventIdx)
	out, _ := f.alloc(1)
	r := f.rings[1]
	kick, err := descriptorOf(r.kick)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		resume := hold(t, f.conn)
		r.write(0, desc{out, 1, 0, 0})
		r.add(0)
		time.Sleep(5 * time.Millisecond) // for a back end that reads it
		var b [8]byte
		if n, err := unix.Read(kick, b[:]); n != 8 || err != nil {
			t.Fatalf("hold %d: the kick is not in the eventfd: %d, %v", i, n, err)
		}
		r.kick.Write(b[:])
		resume()
		r.wait()
	}
}
