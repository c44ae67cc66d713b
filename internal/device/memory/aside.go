package memory

import (
	"runtime/debug"
	"sync/atomic"
	"syscall"
)

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
	for k, w := range s.windows {
		if w == p.win {
			w.refs++
			j.mapped = mappedWord{at, s, k}
			return
		}
	}
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
	j.mapped.at.Load() // here it is held up, if at all
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
