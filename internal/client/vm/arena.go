package vm

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/client/vm/vmproto"
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/net/vhostuser"
)

const (
	pageSize = 4096
	// arenaSize is the maximum size of the queues of one session.
	arenaSize = 1 << 30
	// growBy is the minimum size of an extension.
	growBy   = 1 << 20
	mostRuns = vmproto.MostRuns
	// Large extensions get whole huge pages.
	hugePage = vmproto.HugePage
)

// arenaPages are the pages for the queues of one session: nic.Pages and nic.Grower. In the guest they are a file in its memory;
// here they are mapped a second time, contiguously.
type arenaPages struct {
	ram   *ram
	mem   []byte // arenaSize bytes, with memory up to ready
	ready atomic.Uint64
	ask   func(size uint64) ([]vmproto.Run, error)
	lost  func()        // called for pages that do not exist any more; may be nil
	runs  *atomic.Int64 // mappings of the guest
	// account is charged for the mappings, whose number is limited for the daemon; may be nil.
	account *budget.Account
	// refused is called once with the reason why there are no more pages; may be nil.
	refused func(size uint64, why error)

	mu   sync.Mutex
	list []vmproto.Run // guarded by mu: these pages, for the next daemon
	mine int           // guarded by mu: runs of these pages
	told bool          // guarded by mu
	full bool          // guarded by mu: pages of the agent could not be mapped, so later ones would be at wrong offsets
}

// newArenaPages maps the first pages. used: they belong to a session of the daemon before this one, and keep their contents.
func newArenaPages(r *ram, first []vmproto.Run, used bool, runs *atomic.Int64, account *budget.Account, ask func(uint64) ([]vmproto.Run, error)) (*arenaPages, error) {
	mem, err := unix.Mmap(-1, 0, arenaSize, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("room for queues: %w", err)
	}
	a := &arenaPages{ram: r.hold(), mem: mem, ask: ask, runs: runs, account: account}
	if err = a.add(first, !used); err == nil && a.Ready() < protocol.SharedSize {
		err = fmt.Errorf("the agent gave %d bytes for queues, which is less than the %d of a doorbell page", a.Ready(), protocol.SharedSize)
	}
	if err != nil {
		a.Close()
		return nil, err
	}
	return a, nil
}

// touch runs f, which accesses the pages. It returns EFAULT if QEMU has truncated their file, or has no huge page for one.
func (a *arenaPages) touch(f func()) error {
	at := vhostuser.Contain(f)
	switch {
	case at == 0:
		return nil
	case !memory.Within(at, a.mem):
		panic(fmt.Sprintf("vm: fault at %#x, in no machine's memory", at))
	}
	return fmt.Errorf("the guest's memory has become shorter, or there are no more huge pages: %w", syscall.EFAULT)
}

// there returns an error if the first page does not exist any more. The caller holds mu.
func (a *arenaPages) there() error {
	if a.list == nil { // closed
		return nil
	}
	var sum byte
	err := a.touch(func() { sum += a.mem[protocol.DoorbellArmed] })
	runtime.KeepAlive(sum)
	return err
}

// add maps runs at the end: all of them or none. empty: it clears them.
func (a *arenaPages) add(runs []vmproto.Run, empty bool) (err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.charge(len(runs)); err != nil {
		return err
	}
	begin := a.ready.Load()
	at := begin
	defer func() {
		if err != nil && mapNothing(a.mem[begin:at]) == nil {
			a.refund(len(runs))
		}
	}()
	for _, r := range runs {
		from := a.ram.run(r)
		if from == nil || r.Addr%pageSize != 0 || r.Size%pageSize != 0 || r.Size > arenaSize-at {
			return fmt.Errorf("%d bytes at %#x are no pages of the machine", r.Size, r.Addr)
		}
		if err := mapAgain(a.mem[at:at+r.Size], from); err != nil {
			return fmt.Errorf("map the machine's pages for queues: %w", err)
		}
		at += r.Size
	}
	// A session starts with zeros, and the agent's file may contain old data.
	if empty {
		if err := a.touch(func() { clear(a.mem[begin:at]) }); err != nil {
			return err
		}
	}
	a.list = append(a.list, runs...)
	a.ready.Store(at)
	return nil
}

// charge counts mappings. The caller holds mu.
func (a *arenaPages) charge(n int) error {
	if a.runs.Add(int64(n)) > mostRuns {
		a.runs.Add(-int64(n))
		return fmt.Errorf("the guest's memory is in too many pieces for queues: they have %d of %d, and this is %d more", a.runs.Load(), mostRuns, n)
	}
	if err := a.account.Charge(budget.Bill{budget.Mappings: uint64(n)}); err != nil {
		a.runs.Add(-int64(n))
		return err
	}
	a.mine += n
	return nil
}

// refund reverts charge. The caller holds mu.
func (a *arenaPages) refund(n int) {
	a.runs.Add(-int64(n))
	a.account.Refund(budget.Bill{budget.Mappings: uint64(n)})
	a.mine -= n
}

// Bytes implements nic.Pages.
func (a *arenaPages) Bytes() []byte { return a.mem }

// Ready implements nic.Grower.
func (a *arenaPages) Ready() uint64 { return a.ready.Load() }

// Grow implements nic.Grower.
func (a *arenaPages) Grow(size uint64) error {
	size = (max(size, growBy) + pageSize - 1) &^ (pageSize - 1)
	if size >= hugePage {
		size += -(a.Ready() + size) % hugePage
	}
	size = min(size, arenaSize-a.Ready())
	a.mu.Lock()
	full := a.full
	a.mu.Unlock()
	switch {
	case size == 0:
		return errors.New("the queues of one session have all the room that there is")
	case full:
		return errors.New("pages for queues of this session were refused before: its program has to open the device again")
	case a.runs.Load() >= mostRuns:
		// The agent would pin useless pages, and the session would stay full.
		err := fmt.Errorf("the guest's memory is in too many pieces for queues: they have all %d", mostRuns)
		a.refuse(size, err)
		return err
	}
	runs, err := a.ask(size)
	if err == nil {
		if err = a.add(runs, true); err != nil {
			a.mu.Lock()
			a.full = true
			a.mu.Unlock()
		}
	}
	if err != nil {
		a.refuse(size, err)
	}
	return err
}

// refuse reports why a queue was refused, once: the program gets only ENOMEM, and may try without end.
func (a *arenaPages) refuse(size uint64, why error) {
	a.mu.Lock()
	told := a.told
	a.told = true
	a.mu.Unlock()
	if !told && a.refused != nil {
		a.refused(size, why)
	}
}

// Punch implements nic.Pages. The guest keeps its pages.
func (a *arenaPages) Punch(offset, size uint64) {
	if a.touch(func() { clear(a.mem[offset : offset+size]) }) != nil && a.lost != nil {
		a.lost()
	}
}

// Close implements nic.Pages.
func (a *arenaPages) Close() {
	a.mu.Lock()
	a.list = nil
	a.refund(a.mine)
	a.mu.Unlock()
	unix.Munmap(a.mem)
	a.ram.drop()
}
