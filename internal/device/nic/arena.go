package nic

import (
	"cmp"
	"os"
	"slices"
	"sort"
	"sync"
	"syscall"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/client/protocol"
)

// MMap is the position of a ring in the arena, for the provider's struct mminfo.
type MMap struct {
	Offset uint64 `cbor:"1,keyasint,omitempty"`
	Size   uint32 `cbor:"2,keyasint,omitempty"`
}

const (
	arenaSize = 4 << 30
	pageSize  = 4096
)

// An Arena is the memory that a session shares with its client: the doorbell page,
// the arm words of completion queues and every ring. For a process it is one sparse sealed
// memfd, which is also the client's command fd, so that mmap of a ring works natively.
//
// A new ring costs nothing but its address: pages come when they are touched. Giving the
// pages of a ring back takes long if the ring is large, so the loop does not do it:
//
//	ring in use ─ release (loop) ─► released ─ Reclaim (session) ─► reclaimed ─ alloc (loop) ─► free
//	     ▲                             │
//	     └──── alloc (loop), small ────┘
//
// Small rings are reclaimed many at once, and the one that was released last is used for the
// next ring of its size: a program that opens and closes connections makes and destroys the
// same rings all the time. What is released is charged until it is reclaimed.
type Arena struct {
	pages Pages
	mem   []byte       // theirs; nil: closed
	free  []arenaRange // sorted, disjoint, not adjacent
	// account is charged for every ring.
	account *budget.Account
	// dying: the session is closed and all of the arena goes at once; giving
	// rings back one by one would only be more work.
	dying bool
	// lost: it cannot be read or written any more.
	lost bool
	// populated is where the pages end that were made before they are needed.
	populated uint64

	mu         sync.Mutex // guards what follows; the rest is the loop's
	used       uint64     // bytes that are charged
	released   []MMap     // rings that are gone, their pages are not
	reclaiming []MMap     // those that Reclaim works on
	lag        uint64     // bytes of them
	reclaimed  []MMap     // rings that are gone with their pages
	short      bool       // see Short
	wanted     uint64     // pages for a ring of so many bytes; 0: there are enough
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
	a := &Arena{pages: p, mem: p.Bytes()}
	a.free = []arenaRange{{protocol.SharedSize, a.end() - protocol.SharedSize}}
	a.describeSure()
	return a
}

// end is where its memory ends.
func (a *Arena) end() uint64 {
	if g, ok := a.pages.(Grower); ok {
		return g.Ready()
	}
	return uint64(len(a.mem))
}

// SetAccount sets the account that rings are charged to. It is called before the first ring.
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

// setReady sets or clears the bit that says that a client may post to the queue pair with this
// handle by the doorbell alone.
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
	a.mu.Lock()
	defer a.mu.Unlock()
	a.account.Refund(budget.Bill{budget.Rings: a.used})
	a.used = 0
}

const (
	// smallRing is how large a ring may be that is used again as it is.
	smallRing = 16 << 10
	// mostLag is how much may be released before it has to be reclaimed, of a client that has
	// little; of one that has much, half of it. So one that closes all its connections waits for
	// that a few times, and not for every few of them.
	mostLag = 256 << 10
	// many is how much a client has made when pages for more of it are made in advance, so
	// many at a time: making one when it is first touched costs several times as much.
	many      = 256 << 10
	inAdvance = 64 << 10
)

// alloc finds size bytes. Those before the first slot of a ring (abi.QueueData) are zero.
func (a *Arena) alloc(size uint64) (MMap, []byte, error) {
	size = (size + pageSize - 1) &^ (pageSize - 1)
	if m, ok := a.again(size); ok {
		mem := a.mem[m.Offset : m.Offset+size : m.Offset+size]
		clear(mem[:abi.QueueData]) // what is in the slots was the same client's
		return m, mem, nil
	}
	a.collect()
	m, mem, err := a.find(size)
	if err != nil {
		a.mu.Lock()
		// An account that refuses does so with more pages, too. (Its error is ENOMEM for the program.)
		if g, ok := a.pages.(Grower); ok && err == syscall.ENOMEM && size <= uint64(len(a.mem))-g.Ready() {
			a.wanted = size
		}
		a.short = a.lag > 0 || a.wanted > 0
		a.mu.Unlock()
	}
	return m, mem, err
}

// Short reports, once, whether a ring was refused for which there may be room when something
// has been reclaimed.
func (a *Arena) Short() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	was := a.short
	a.short = false
	return was
}

// again takes a small ring that was released and has this size.
func (a *Arena) again(size uint64) (MMap, bool) {
	if size > smallRing {
		return MMap{}, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := len(a.released) - 1; i >= 0; i-- {
		if m := a.released[i]; uint64(m.Size) == size {
			last := len(a.released) - 1
			a.released[i] = a.released[last]
			a.released = a.released[:last]
			a.lag -= size
			return m, true
		}
	}
	return MMap{}, false
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
		rest := r.size
		if rest == 0 {
			a.free = append(a.free[:i], a.free[i+1:]...)
		}
		a.mu.Lock()
		a.used += size
		used := a.used
		a.mu.Unlock()
		if size <= smallRing && used >= many {
			a.populate(off, size+min(rest, inAdvance-size))
		}
		return MMap{Offset: off, Size: uint32(size)}, a.mem[off : off+size : off+size], nil
	}
	return MMap{}, nil, syscall.ENOMEM
}

// populate makes pages from off on, where a ring begins, unless that was done.
func (a *Arena) populate(off, size uint64) {
	p, ok := a.pages.(interface{ Populate(offset, size uint64) })
	if ok && (off >= a.populated || off+inAdvance < a.populated) {
		p.Populate(off, size)
		a.populated = off + size
	}
}

// release gives a ring back. Its pages go with the next Reclaim.
func (a *Arena) release(m MMap) {
	if m.Size == 0 || a.mem == nil || a.dying {
		return
	}
	a.mu.Lock()
	a.released = append(a.released, m)
	a.lag += uint64(m.Size)
	a.mu.Unlock()
}

// Reclaim gives the pages of released rings back to the system and reports whether there
// were any. It does not run on the loop: it takes long if there are many, and blocks while the
// client allocates pages. The session's goroutine calls it in two cases:
//
//   - before the reply to a command, if it is Due: a client that makes and destroys rings all the
//     time waits for its own pages;
//   - before it repeats a command that was Short of memory.
//
// The arena must not be closed meanwhile.
func (a *Arena) Reclaim() bool {
	a.grow()
	a.mu.Lock()
	ms, bytes := a.released, a.lag
	a.released, a.lag, a.reclaiming = nil, 0, ms
	a.mu.Unlock()
	if len(ms) == 0 {
		return false
	}
	slices.SortFunc(ms, func(a, b MMap) int { return cmp.Compare(a.Offset, b.Offset) })
	for i := 0; i < len(ms); {
		// Adjacent rings are punched in one call: those of one connection are, and often those of many.
		begin, end := ms[i].Offset, ms[i].Offset
		for ; i < len(ms) && ms[i].Offset == end; i++ {
			end += uint64(ms[i].Size)
		}
		a.pages.Punch(begin, end-begin)
	}
	a.account.Refund(budget.Bill{budget.Rings: bytes})
	a.mu.Lock()
	a.used -= bytes
	a.reclaimed = append(a.reclaimed, ms...)
	a.reclaiming = nil
	a.mu.Unlock()
	return true
}

// grow has pages for the ring that was refused for want of them, if there was one. It makes them
// known as if they had been reclaimed.
func (a *Arena) grow() {
	a.mu.Lock()
	size := a.wanted
	a.wanted = 0
	a.mu.Unlock()
	g, ok := a.pages.(Grower)
	if size == 0 || !ok {
		return
	}
	begin := g.Ready()
	if g.Grow(size) != nil {
		return // the command fails again, and says so
	}
	a.mu.Lock()
	a.reclaimed = append(a.reclaimed, MMap{Offset: begin, Size: uint32(g.Ready() - begin)})
	a.mu.Unlock()
}

// inUse is how many bytes of rings there are, those included that are not reclaimed yet.
func (a *Arena) inUse() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.used
}

// Due reports whether so much is released that it has to be reclaimed.
func (a *Arena) Due() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lag > max(mostLag, min(a.used/2, 16*mostLag))
}

// collect adds the reclaimed ranges to free.
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
