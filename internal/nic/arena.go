package nic

import (
	"os"
	"sort"
	"sync"
	"syscall"

	"vrdma/internal/budget"
	"vrdma/internal/protocol"
)

// MMap says where in the arena a ring lies: what struct mminfo tells the provider.
type MMap struct {
	Offset uint64
	Size   uint32
}

const (
	arenaSize = 4 << 30
	pageSize  = 4096
)

// An Arena is the memory that a session shares with its client: the doorbell page
// and every ring. For a process it is one sparse sealed memfd, which is also the client's
// command fd, so that mmap of a ring works natively.
//
// A new ring costs nothing but its address: pages come when they are touched. Giving the
// pages of a ring back takes long if the ring is large, so the loop does not do it:
//
//	ring in use ─ release (loop) ─► released ─ Reclaim (session) ─► reclaimed ─ alloc (loop) ─► free
type Arena struct {
	pages Pages
	mem   []byte       // theirs; nil: closed
	free  []arenaRange // sorted, disjoint, not adjacent
	used  uint64
	// account is charged for every ring.
	account *budget.Account
	// dying: the session is closed and all of the arena goes at once; giving
	// rings back one by one would only be more work.
	dying bool

	mu        sync.Mutex // guards what follows; the rest is the loop's
	released  []MMap     // rings that are gone, their pages are not
	reclaimed []MMap     // rings that are gone with their pages
}

type arenaRange struct{ off, size uint64 }

// NewArena makes the arena of a process: a memfd.
func NewArena() (*Arena, error) {
	f, err := newRingFile()
	if err != nil {
		return nil, err
	}
	return NewArenaIn(f), nil
}

// NewArenaIn makes an arena of these pages, which it closes.
func NewArenaIn(p Pages) *Arena {
	mem := p.Bytes()
	return &Arena{pages: p, mem: mem, free: []arenaRange{{protocol.DoorbellSize, uint64(len(mem)) - protocol.DoorbellSize}}}
}

// SetAccount says who is charged for rings. It is called before the first of them.
func (a *Arena) SetAccount(account *budget.Account) { a.account = account }

// File is the memfd, to be passed to the client; nil if it is something else.
func (a *Arena) File() *os.File {
	if f, ok := a.pages.(*ringFile); ok {
		return f.file
	}
	return nil
}

// Size of the arena in bytes.
func (a *Arena) Size() uint64 { return uint64(len(a.mem)) }

// Doorbell is the page through which the client rings.
func (a *Arena) Doorbell() []byte { return a.mem[:protocol.DoorbellSize:protocol.DoorbellSize] }

// setReady tells the client whether it may post to the queue pair with this handle
// by ringing alone.
func (a *Arena) setReady(handle uint32, ready bool) {
	w := shared64(a.mem, protocol.DoorbellReady+int(handle/64)*8)
	if bit := uint64(1) << (handle % 64); ready {
		w.Or(bit)
	} else {
		w.And(^bit)
	}
}

// Close unmaps the arena. Nothing may use its rings any more.
func (a *Arena) Close() {
	if a.mem == nil {
		return
	}
	a.mem = nil
	a.pages.Close()
	a.account.Refund(budget.Bill{budget.Rings: a.used})
	a.used = 0
}

// alloc finds size bytes.
func (a *Arena) alloc(size uint64) (MMap, []byte, error) {
	size = (size + pageSize - 1) &^ (pageSize - 1)
	a.collect()
	m, mem, err := a.find(size)
	if err == syscall.ENOMEM && a.Reclaim() {
		// There is no room, which a refused charge is not. It is only so where nobody
		// reclaims after each command.
		a.collect()
		m, mem, err = a.find(size)
	}
	return m, mem, err
}

// find takes size bytes from the free ranges, first fit.
func (a *Arena) find(size uint64) (MMap, []byte, error) {
	for i := range a.free {
		r := &a.free[i]
		if r.size < size {
			continue
		}
		if err := a.account.Charge(budget.Bill{budget.Rings: size}); err != nil {
			return MMap{}, nil, err
		}
		off := r.off
		r.off, r.size = r.off+size, r.size-size
		if r.size == 0 {
			a.free = append(a.free[:i], a.free[i+1:]...)
		}
		a.used += size
		return MMap{Offset: off, Size: uint32(size)}, a.mem[off : off+size : off+size], nil
	}
	return MMap{}, nil, syscall.ENOMEM
}

// release gives a ring back. Its pages go with the next Reclaim.
func (a *Arena) release(m MMap) {
	if m.Size == 0 || a.mem == nil || a.dying {
		return
	}
	a.used -= uint64(m.Size)
	a.account.Refund(budget.Bill{budget.Rings: uint64(m.Size)})
	a.mu.Lock()
	a.released = append(a.released, m)
	a.mu.Unlock()
}

// Reclaim gives the pages of released rings back to the system and reports whether there
// were any. It takes long and is not for the loop: whoever ran a command for the session
// calls it before the answer, so that a client that makes and destroys rings without end
// waits for itself. The arena must not be closed meanwhile.
func (a *Arena) Reclaim() bool {
	a.mu.Lock()
	ms := a.released
	a.released = nil
	a.mu.Unlock()
	for _, m := range ms {
		a.pages.Punch(m.Offset, uint64(m.Size))
	}
	if len(ms) == 0 {
		return false
	}
	a.mu.Lock()
	a.reclaimed = append(a.reclaimed, ms...)
	a.mu.Unlock()
	return true
}

// Released reports whether there is something to reclaim.
func (a *Arena) Released() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.released) > 0
}

// collect makes what was reclaimed free.
func (a *Arena) collect() {
	a.mu.Lock()
	ms := a.reclaimed
	a.reclaimed = nil
	a.mu.Unlock()
	for _, m := range ms {
		a.insert(m)
	}
}

// insert adds a range to the free ones.
func (a *Arena) insert(m MMap) {
	i := sort.Search(len(a.free), func(i int) bool { return a.free[i].off > m.Offset })
	a.free = append(a.free, arenaRange{})
	copy(a.free[i+1:], a.free[i:])
	a.free[i] = arenaRange{m.Offset, uint64(m.Size)}
	a.join(i)
	if i > 0 {
		a.join(i - 1)
	}
}

// join merges free range i with its right neighbour where they touch.
func (a *Arena) join(i int) {
	if i+1 < len(a.free) && a.free[i].off+a.free[i].size == a.free[i+1].off {
		a.free[i].size += a.free[i+1].size
		a.free = append(a.free[:i+1], a.free[i+2:]...)
	}
}
