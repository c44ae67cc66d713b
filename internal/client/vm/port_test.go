package vm

import (
	"errors"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/client/vm/vmproto"
)

// TestDrain drains the doorbell's socket before the loop polls it. The loop still sees the doorbell.
func TestDrain(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	program, f := os.NewFile(uintptr(fds[0]), "program"), os.NewFile(uintptr(fds[1]), "bell")
	defer program.Close()
	c, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	epfd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(epfd)
	watched := int(f.Fd()) // the loop has a copy of its own
	defer f.Close()
	if err := unix.EpollCtl(epfd, unix.EPOLL_CTL_ADD, watched, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET}); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var p Sockets
		p.gate.Enter()
		defer p.gate.Leave()
		p.drain(c.(*net.UnixConn))
	}()
	for i := range 5 {
		if _, err := program.Write(make([]byte, 8)); err != nil {
			t.Fatal(err)
		}
		left := 0
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if left, err = unix.IoctlGetInt(watched, unix.TIOCINQ); err != nil || left <= 1 {
				break
			}
		}
		if err != nil || left != 1 {
			t.Fatalf("ring %d: %d bytes are left (%v), want 1", i, left, err)
		}
		events := make([]unix.EpollEvent, 1)
		if n, err := unix.EpollWait(epfd, events, 0); n != 1 {
			t.Fatalf("ring %d is not heard: %d events (%v)", i, n, err)
		}
	}
	program.Close()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("it still drains a connection that has ended")
	}
}

// TestTables: while programs run, all memory tables stay; without programs only the last one.
func TestTables(t *testing.T) {
	first, second := newTestRAM(t), newTestRAM(t)
	r := newRAM(first)
	r.add(second)
	if first.released.Load() != 0 {
		t.Error("a table is let go that a program may use")
	}
	r.settle()
	r.settle()
	if first.released.Load() != 1 || second.released.Load() != 0 {
		t.Errorf("without programs the first table was let go %d times, the second %d", first.released.Load(), second.released.Load())
	}
	r.drop()
	if first.released.Load() != 1 || second.released.Load() != 1 {
		t.Errorf("at the end the first table was let go %d times, the second %d", first.released.Load(), second.released.Load())
	}
}

// TestTooManyPieces: a queue whose pages are in too many pieces is refused with a reason, and so is every later one.
func TestTooManyPieces(t *testing.T) {
	r := newRAM(newTestRAM(t))
	defer r.drop()
	var runs atomic.Int64
	asked := 0
	more := func(size uint64) ([]vmproto.Run, error) {
		if asked++; (arenaPagesAtFirst*pageSize+size)%hugePage != 0 {
			t.Errorf("%#x bytes are asked for, behind the first %#x", size, arenaPagesAtFirst*pageSize)
		}
		return make([]vmproto.Run, mostRuns+1), nil
	}
	queues, err := newArenaPages(r, pages(0, arenaPagesAtFirst), false, &runs, nil, more)
	if err != nil {
		t.Fatal(err)
	}
	defer queues.Close()
	var why []error
	queues.refused = func(_ uint64, err error) { why = append(why, err) }
	// Other sessions use all pieces for a while. The agent gets no recall, and a later request may succeed.
	runs.Add(mostRuns)
	if queues.Grow(pageSize) == nil || asked != 0 || queues.full || len(why) != 1 {
		t.Errorf("without pieces the agent was asked %d times, and the reasons are %v", asked, why)
	}
	runs.Add(-mostRuns)
	queues.told, why = false, nil
	for range 2 {
		if queues.Grow(10<<20+8) == nil {
			t.Error("it is not refused")
		}
	}
	if asked != 1 || len(why) != 1 {
		t.Errorf("the agent was asked %d times, and the reasons are %v", asked, why)
	}
}

// TestPiecesOfAll: the pieces of all guests of a user have one common bound, and all are released in the end.
func TestPiecesOfAll(t *testing.T) {
	const limit = 1000
	ledger := budget.New(budget.Limits{All: budget.Bill{budget.Mappings: limit}, Others: budget.Bill{budget.Mappings: limit}, User: budget.Bill{budget.Mappings: limit}})
	account := ledger.User(1)
	defer account.Drop()
	var open []*arenaPages
	var refused *budget.Error
	for range limit {
		r := newRAM(newTestRAM(t)) // a guest of its own
		queues, err := newArenaPages(r, pages(0, arenaPagesAtFirst), false, new(atomic.Int64), account, nil)
		r.drop()
		if err != nil {
			if !errors.As(err, &refused) || refused.Kind != budget.Mappings {
				t.Errorf("refused because of %v", err)
			}
			break
		}
		open = append(open, queues)
	}
	if refused == nil || len(open) == 0 || len(open)*arenaPagesAtFirst/2 > limit {
		t.Errorf("there are %d times %d pieces, with %d allowed (%v)", len(open), arenaPagesAtFirst/2, limit, refused)
	}
	for _, queues := range open {
		queues.Close()
	}
	if used := account.Used(); used != (budget.Bill{}) {
		t.Errorf("%v is still charged", used)
	}
}

// TestSeldom: a message is logged at most once a minute.
func TestSeldom(t *testing.T) {
	var s seldom
	now := time.Now()
	for after, want := range []bool{true, false, false, true, false} {
		if s.at(now.Add(time.Duration(after)*20*time.Second)) != want {
			t.Errorf("after %d s: want %v", after*20, want)
		}
	}
}
