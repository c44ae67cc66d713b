package memory

import (
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
)

// Memory that the loop may not access although the daemon has it mapped: the page may be missing, and its
// owner decides how long the kernel needs to make it. A thread of the Pool accesses it, at the daemon's own
// mapping and not at the address of the process: mremap, munmap and fork change what lies there, and
// the region stays with its pages. The thread uses /proc/self/mem. It may sleep there, and a thread that
// sleeps in a system call does not hold up Go's garbage collector, as one in a page fault does.
//
// The Job holds the windows: nothing else is mapped at these addresses before the thread is back.

// An asidePiece is where such a piece is mapped.
type asidePiece struct {
	mem []byte
	win *window
}

// ownMemory is the memory of the daemon, at offset = address; nil if it cannot be opened.
var ownMemory = sync.OnceValue(func() Remote {
	f, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	return f
})

// holdWindow returns where a foreign piece is mapped, and holds its window; 0: it is not mapped.
func (j *Job) holdWindow(p *Piece) uintptr {
	if p.aside == nil {
		return 0
	}
	if w := p.aside.win; !slices.Contains(j.holds, w) {
		p.Space.mu.Lock()
		w.refs++
		p.Space.mu.Unlock()
		j.holds = append(j.holds, w)
	}
	return uintptr(addressOf(p.aside.mem))
}

// releaseWindows ends the holds. All are of j's space.
func (j *Job) releaseWindows() {
	if len(j.holds) == 0 {
		return
	}
	j.space.mu.Lock()
	defer j.space.mu.Unlock()
	for i, w := range j.holds {
		j.space.drop(w.key)
		j.holds[i] = nil
	}
	j.holds = j.holds[:0]
}

// A mappedWord is a word of mapped memory that a Job changes, because the loop may not touch it.
// Queue pairs that the loop may serve itself can change the same word at the same time, and so can
// the program: only a processor's atomic operation on the same page is one step for all of them.
//
// The thread may be held up there for as long as the owner of the page likes. So the Job holds the
// window: nothing else is mapped at that address before the thread is back.
type mappedWord struct {
	at    *atomic.Uint64 // nil: the word is not mapped
	space *Space
	key   windowKey
}

// HoldWord makes j, an atomic operation on the word at off of r, change that word where it is
// mapped. Where it is not, j reaches it as foreign memory.
func (j *Job) HoldWord(r *Region, off uint64) {
	p := &r.pieces[r.find(off)]
	if p.win == nil || off-p.off+8 > p.n {
		return
	}
	at := word(p.mem[off-p.off:][:8])
	if at == nil {
		return
	}
	s := r.space
	s.mu.Lock()
	defer s.mu.Unlock()
	p.win.refs++
	j.mapped = mappedWord{at, s, p.win.key}
}

// release ends the hold.
func (m *mappedWord) release() {
	if m.at == nil {
		return
	}
	m.space.mu.Lock()
	defer m.space.mu.Unlock()
	m.space.drop(m.key)
	*m = mappedWord{}
}

// change is the operation of j on its mapped word. EFAULT: the file has become shorter.
func (j *Job) change() (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			if _, fault := r.(interface{ Addr() uintptr }); !fault {
				panic(r)
			}
			err = syscall.EFAULT
		}
	}()
	// Here it is held up, if at all: the page is present afterwards, unless it is punched out again.
	var b [8]byte
	if err := readFrom(ownMemory(), addressOfWord(j.mapped.at), b[:]); err != nil {
		return err
	}
	if j.mute.Load() {
		return syscall.EINTR
	}
	if j.op == jobStore {
		j.mapped.at.Store(j.args[1])
		return nil
	}
	j.old = apply(j.mapped.at, j.op == jobSwap, j.args[0], j.args[1])
	return nil
}
