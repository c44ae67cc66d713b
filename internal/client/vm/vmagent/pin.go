package vmagent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/client/vm/vmproto"
)

const pageSize = 4096

// A pinned is a set of pages that do not move until it is closed. They are registered buffers of a separate io_uring. (mlock
// keeps pages in memory, but the kernel may still move them.)
type pinned struct {
	ring  int
	bytes uint64
}

func (p *pinned) close() { unix.Close(p.ring) }

// pinner pins pages and finds their physical addresses.
type pinner struct {
	pagemap *os.File
	share   int                    // percent of the machine's memory
	total   func() (uint64, error) // the machine's current memory, which ballooning and hotplug change

	mu    sync.Mutex
	bytes uint64 // guarded by mu: bytes pinned
}

func newPinner(share int) (*pinner, error) {
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return nil, err
	}
	return &pinner{pagemap: f, share: share, total: machineMemory}, nil
}

// machineMemory returns the machine's current memory in bytes.
func machineMemory() (uint64, error) {
	var s unix.Sysinfo_t
	if err := unix.Sysinfo(&s); err != nil {
		return 0, fmt.Errorf("how much memory has this machine: %w", err)
	}
	return s.Totalram * uint64(s.Unit), nil
}

// errFull means that the agent may not pin more memory.
var errFull = errors.New("too much memory is registered in this machine")

// pin pins the pages of [offset, offset+length) of a memfd, and returns their runs. few asks for few runs, for queues: the daemon
// maps each run separately.
func (p *pinner) pin(memfd int, offset, length uint64, few bool) (*pinned, []vmproto.Run, error) {
	begin, end := offset&^(pageSize-1), (offset+length+pageSize-1)&^(pageSize-1)
	size := end - begin
	if end < begin || size == 0 || size > 1<<46 {
		return nil, nil, unix.EINVAL
	}
	if err := p.take(size); err != nil {
		return nil, nil, err
	}
	pages, runs, err := p.pinPages(memfd, int64(begin), int(size), few && size >= hugePage)
	if err != nil {
		p.give(size)
		return nil, nil, err
	}
	return pages, trim(runs, offset-begin, length), nil
}

func (p *pinner) take(n uint64) error {
	total, err := p.total()
	if err != nil {
		return err
	}
	most := total / 100 * uint64(p.share)
	p.mu.Lock()
	defer p.mu.Unlock()
	if n > most || p.bytes > most-n {
		return fmt.Errorf("%w: %d bytes are, and %d more would be over %d %% of its %d (vrdma guest agent --pin)", errFull, p.bytes, n, p.share, total)
	}
	p.bytes += n
	return nil
}

func (p *pinner) give(n uint64) {
	p.mu.Lock()
	p.bytes -= n
	p.mu.Unlock()
}

// unpin ends a pin.
func (p *pinner) unpin(x *pinned) {
	x.close()
	p.give(x.bytes)
}

func (p *pinner) pinPages(memfd int, offset int64, size int, huge bool) (*pinned, []vmproto.Run, error) {
	mapPages := mapSmall
	if huge {
		mapPages = mapHuge
	}
	mem, unmap, err := mapPages(memfd, offset, size)
	if err != nil {
		return nil, nil, fmt.Errorf("map %d bytes to pin them: %w", size, err)
	}
	defer unmap() // the pin does not need the mapping
	ring, err := pinMemory(mem)
	if err != nil {
		return nil, nil, err
	}
	runs, err := p.frames(mem)
	if err != nil {
		unix.Close(ring)
		return nil, nil, err
	}
	return &pinned{ring, uint64(size)}, runs, nil
}

const hugePage = vmproto.HugePage

// mapSmall maps pages of a memfd and populates them.
func mapSmall(memfd int, offset int64, size int) ([]byte, func(), error) {
	mem, err := unix.Mmap(memfd, offset, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	return mem, func() { unix.Munmap(mem) }, err
}

// frames returns the physical addresses of pinned pages.
func (p *pinner) frames(mem []byte) (runs []vmproto.Run, err error) {
	const present, frame = 1 << 63, 1<<55 - 1
	raw := make([]byte, min(8*len(mem)/pageSize, 64<<10))
	at := address(mem) / pageSize * 8
	for left := 8 * len(mem) / pageSize; left > 0; left -= len(raw) {
		raw = raw[:min(len(raw), left)]
		if _, err := p.pagemap.ReadAt(raw, int64(at)); err != nil {
			return nil, fmt.Errorf("/proc/self/pagemap: %w", err)
		}
		at += uint64(len(raw))
		for b := raw; len(b) > 0; b = b[8:] {
			e := binary.NativeEndian.Uint64(b)
			if e&present == 0 || e&frame == 0 {
				return nil, errors.New("the kernel does not say where a page is: the agent has to be root (CAP_SYS_ADMIN)")
			}
			runs = join(runs, vmproto.Run{Addr: e & frame * pageSize, Size: pageSize})
		}
	}
	return runs, nil
}

// join appends a run, and merges it with the last one if they are adjacent.
func join(runs []vmproto.Run, r vmproto.Run) []vmproto.Run {
	if n := len(runs); n > 0 && runs[n-1].Addr+runs[n-1].Size == r.Addr {
		runs[n-1].Size += r.Size
		return runs
	}
	return append(runs, r)
}

// trim reduces runs to length bytes, starting at skip, which is less than a page.
func trim(runs []vmproto.Run, skip, length uint64) []vmproto.Run {
	runs[0].Addr, runs[0].Size = runs[0].Addr+skip, runs[0].Size-skip
	for i := range runs {
		if runs[i].Size >= length {
			runs[i].Size = length
			return runs[:i+1]
		}
		length -= runs[i].Size
	}
	return runs
}
