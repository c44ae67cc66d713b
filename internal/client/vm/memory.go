package vm

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"vrdma.dev/vrdma/internal/client/vm/vmproto"
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/net/vhostuser"
)

// Memory is a guest's RAM by guest-physical address, mapped in the daemon. It does not change until Release.
type Memory interface {
	// Slice returns memory at an address: n bytes, or fewer if the region ends before; nil if there is none.
	Slice(addr, n uint64) []byte
	// Contains reports whether an address of the daemon lies in it.
	Contains(addr uintptr) bool
	Release()
}

// ram is a guest's memory while it is in use. The newest table is searched first. Older tables stay, because programs may use
// their memory.
type ram struct {
	holds atomic.Int32
	mu    sync.Mutex
	list  atomic.Pointer[[]Memory] // changed with mu held; the last one is searched first
}

func newRAM(m Memory) *ram {
	r := &ram{}
	r.list.Store(&[]Memory{m})
	r.holds.Store(1)
	return r
}

// mostTables is the maximum number of tables. They differ in memory that was plugged or unplugged while programs ran.
const mostTables = 64

// add adds a table and takes it over. It returns false if there are too many: then all users of r must start again.
func (r *ram) add(m Memory) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := *r.list.Load()
	if r.holds.Load() == 0 {
		m.Release()
		return true
	}
	var list, gone []Memory
	for _, o := range old {
		if replaces(m, o) {
			gone = append(gone, o)
		} else {
			list = append(list, o)
		}
	}
	if len(list) == mostTables {
		m.Release()
		return false
	}
	list = append(list, m)
	r.list.Store(&list)
	for _, o := range gone {
		o.Release()
	}
	return true
}

// replaces reports whether a table contains an earlier one, because memory was plugged in. Used parts of the earlier one stay mapped.
func replaces(now, old Memory) bool {
	n, ok1 := now.(*vhostuser.Memory)
	o, ok2 := old.(*vhostuser.Memory)
	return ok1 && ok2 && n.Has(o)
}

// settle releases all tables except the last, when they are not in use. Unplugged memory is free then.
func (r *ram) settle() {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := *r.list.Load()
	if r.holds.Load() == 0 || len(old) == 1 {
		return
	}
	list := old[len(old)-1:]
	r.list.Store(&list)
	for _, o := range old[:len(old)-1] {
		o.Release()
	}
}

func (r *ram) hold() *ram {
	r.holds.Add(1)
	return r
}

func (r *ram) drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.holds.Add(-1) == 0 {
		for _, m := range *r.list.Load() {
			m.Release()
		}
	}
}

// Contains reports whether an address of the daemon lies in it.
func (r *ram) Contains(addr uintptr) bool {
	return slices.ContainsFunc(*r.list.Load(), func(m Memory) bool { return m.Contains(addr) })
}

// run returns the memory of a run; nil if a part of it does not exist.
func (r *ram) run(at vmproto.Run) []byte {
	for _, m := range slices.Backward(*r.list.Load()) {
		if b := m.Slice(at.Addr, at.Size); uint64(len(b)) == at.Size {
			return b
		}
	}
	return nil
}

// A backing is the memory of a program's registered regions: memory.Direct.
type backing struct{ *ram }

// top is above all guest-physical addresses.
const top = 1 << 52

// Size implements memory.Backing.
func (backing) Size() uint64 { return top }

// Map implements memory.Backing. It is not called for a Direct backing.
func (backing) Map(uint64, int) ([]byte, error) { return nil, errors.ErrUnsupported }

// Unmap implements memory.Backing.
func (backing) Unmap([]byte) {}

// Used implements memory.Backing: the pages belong to the guest.
func (backing) Used() (uint64, error) { return 0, nil }

// Hole implements memory.Backing.
func (backing) Hole(offset uint64) uint64 { return offset }

// Close implements memory.Backing.
func (b backing) Close() error {
	b.drop()
	return nil
}

// Slice implements memory.Direct.
func (b backing) Slice(offset, n uint64) []byte { return b.run(vmproto.Run{Addr: offset, Size: n}) }

// A pin is a set of pages that the agent keeps pinned.
type pin struct {
	id   uint32
	runs []vmproto.Run
}

// cut splits the runs of a pin at the extent [start, start+length) of a program, and appends the extents. It returns the remaining runs.
func cut(out []memory.Extent, start, length uint64, prot uint8, runs []vmproto.Run) ([]memory.Extent, []vmproto.Run, error) {
	for length > 0 {
		if len(runs) == 0 {
			return nil, nil, syscall.ENOMEM // the agent could not pin it
		}
		r := runs[0]
		n := min(r.Size, length)
		out = append(out, memory.Extent{Start: start, Length: n, Kind: memory.Own, Prot: prot, Offset: r.Addr})
		start, length = start+n, length-n
		if n < r.Size {
			return nil, nil, syscall.EFAULT // runs and extents must end together
		}
		runs = runs[1:]
	}
	return out, runs, nil
}
