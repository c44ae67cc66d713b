package vm

import (
	"errors"
	"sync/atomic"
	"syscall"

	"vrdma/internal/memory"
	"vrdma/internal/vmline"
)

// Memory is a machine's RAM, by guest-physical address, mapped in the daemon. It stays as it is
// until Release.
type Memory interface {
	// Slice is memory at an address: n bytes, or fewer if it ends before; nil if there is none.
	Slice(addr, n uint64) []byte
	// Contains reports whether an address of the daemon lies in it.
	Contains(addr uintptr) bool
	Release()
}

// ram is a Memory that several hold.
type ram struct {
	Memory
	holds atomic.Int32
}

func (r *ram) hold() *ram {
	r.holds.Add(1)
	return r
}

func (r *ram) drop() {
	if r.holds.Add(-1) == 0 {
		r.Release()
	}
}

// run is the memory of a run, all of it; nil if some is none.
func (r *ram) run(at vmline.Run) []byte {
	b := r.Slice(at.Addr, at.Size)
	if uint64(len(b)) != at.Size {
		return nil
	}
	return b
}

// A backing is what the registered memory of a program lies in: memory.Direct.
type backing struct{ *ram }

// top is above all guest-physical addresses.
const top = 1 << 52

// Size implements memory.Backing.
func (backing) Size() uint64 { return top }

// Map implements memory.Backing. A Direct one is not asked.
func (backing) Map(uint64, int) ([]byte, error) { return nil, errors.ErrUnsupported }

// Unmap implements memory.Backing.
func (backing) Unmap([]byte) {}

// Used implements memory.Backing: the pages are the machine's.
func (backing) Used() (uint64, error) { return 0, nil }

// Hole implements memory.Backing.
func (backing) Hole(offset uint64) uint64 { return offset }

// Close implements memory.Backing.
func (b backing) Close() error {
	b.drop()
	return nil
}

// Slice implements memory.Direct.
func (b backing) Slice(offset, n uint64) []byte { return b.run(vmline.Run{Addr: offset, Size: n}) }

// A pin is pages that the agent keeps in place.
type pin struct {
	id    uint32
	runs  []vmline.Run
	bytes uint64
}

// cut cuts the runs of a pin to an extent, which is at [start, start+length) of a program, and
// appends what it finds. It returns the runs that are left.
func cut(out []memory.Extent, start, length uint64, prot uint8, runs []vmline.Run) ([]memory.Extent, []vmline.Run, error) {
	for length > 0 {
		if len(runs) == 0 {
			return nil, nil, syscall.ENOMEM // the agent could not pin it
		}
		r := runs[0]
		n := min(r.Size, length)
		out = append(out, memory.Extent{Start: start, Length: n, Kind: memory.Shared, Prot: prot, Offset: r.Addr})
		start, length = start+n, length-n
		if n < r.Size {
			return nil, nil, syscall.EFAULT // runs end where extents do
		}
		runs = runs[1:]
	}
	return out, runs, nil
}
