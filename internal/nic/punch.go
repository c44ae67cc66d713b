package nic

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Giving the pages of a large ring back takes the kernel milliseconds, for which the loop
// cannot wait. So another goroutine does that:
//
//	release ── begin ──▶ run, elsewhere ──▶ done ── take, by the next alloc ──▶ free
type punch struct {
	mu    sync.Mutex
	done  []MMap // pages gone, but not yet free
	bytes uint64 // begun, and not taken
}

const (
	// punchAtOnce is the largest ring whose pages are given back at once.
	punchAtOnce = 64 << 10
	// punchMost is how many bytes may be on their way. Beyond, the loop does it: a
	// program that goes on must not find its arena full.
	punchMost = arenaSize / 4
)

// begin reports whether m may be given back elsewhere.
func (p *punch) begin(m MMap) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bytes+uint64(m.Size) > punchMost {
		return false
	}
	p.bytes += uint64(m.Size)
	return true
}

// run gives the pages of m back. The arena may be closed meanwhile, and its descriptor's
// number be another file's: the connection knows.
func (p *punch) run(f *os.File, m MMap) {
	c, err := f.SyscallConn()
	if err != nil {
		return
	}
	if c.Control(func(fd uintptr) {
		unix.Fallocate(int(fd), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(m.Offset), int64(m.Size))
	}) != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done = append(p.done, m)
}

// take returns what can be used again.
func (p *punch) take() []MMap {
	p.mu.Lock()
	defer p.mu.Unlock()
	done := p.done
	p.done = nil
	for _, m := range done {
		p.bytes -= uint64(m.Size)
	}
	return done
}
