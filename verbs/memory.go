package verbs

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/verbs/internal/ipc"
)

// A PD is a protection domain. Queue pairs reach only memory of their own protection domain.
type PD struct {
	d      *Device
	handle uint32
}

// AllocPD creates a protection domain.
func (d *Device) AllocPD() (*PD, error) {
	var r abi.AllocPDResp
	if _, err := exec(d, abi.CmdAllocPD, &abi.AllocPD{Response: d.response()}, nil, decode(&r)); err != nil {
		return nil, fault("allocate a protection domain", err)
	}
	return &PD{d, r.PDHandle}, nil
}

// Device returns the device of the protection domain.
func (p *PD) Device() *Device { return p.d }

// Close frees the protection domain. Close everything that was created in it first.
func (p *PD) Close() error {
	_, err := exec(p.d, abi.CmdDeallocPD, &abi.DeallocPD{PDHandle: p.handle}, nil, answer{})
	return closed("free a protection domain", err)
}

// closed returns the result of closing an object. An object that the device took with it counts as closed.
func closed(op string, err error) error {
	if errors.Is(err, ErrClosed) || errors.Is(err, ErrGone) {
		return nil
	}
	return fault(op, err)
}

// An MR is a registered memory region.
type MR struct {
	pd     *PD
	bytes  []byte
	own    ipc.Mapped // the mapping that Alloc made
	handle uint32
	lkey   uint32
	rkey   uint32
	base   uint64 // the address of the first byte in the peers' requests
	once   sync.Once
}

// Alloc allocates memory and registers it. The device accesses this memory directly, so it is the fastest
// kind: allocate a large region once and slice it. It lies outside of Go's heap and is unmapped by Close.
func (p *PD) Alloc(size int, access Access) (*MR, error) {
	const op = "allocate registered memory"
	if size <= 0 {
		return nil, fault(op, errors.New("the size must be positive"))
	}
	page := os.Getpagesize()
	whole := uintptr((size + page - 1) / page * page)
	m, err := p.d.backend.Allocate(whole)
	if err != nil {
		return nil, fault(op, err)
	}
	r := &MR{pd: p, bytes: m.Mem[:size:size], own: m}
	if err := r.register(access, true); err != nil {
		p.d.backend.Free(&r.own)
		return nil, fault(op, err)
	}
	return r, nil
}

// Register registers memory that the caller provides, such as a mapped file. The daemon copies such
// memory, so it is slower than memory from Alloc. b must not lie on a goroutine's stack, which can move,
// and must stay valid until Close.
func (p *PD) Register(b []byte, access Access) (*MR, error) {
	const op = "register memory"
	if len(b) == 0 {
		return nil, fault(op, errors.New("the slice is empty"))
	}
	r := &MR{pd: p, bytes: b}
	if err := r.register(access, false); err != nil {
		return nil, fault(op, err)
	}
	return r, nil
}

func (r *MR) register(access Access, ours bool) error {
	start, n := ipc.AddressOf(r.bytes), uint64(len(r.bytes))
	if r.base = start; access&ZeroBased != 0 {
		r.base = 0
	}
	writable := access&(LocalWrite|RemoteWrite|RemoteAtomic) != 0
	req := abi.RegMR{
		Response: r.pd.d.response(), Start: start, Length: n, HCAVA: r.base, PDHandle: r.pd.handle, AccessFlags: uint32(access),
	}
	var resp abi.RegMRResp
	if _, err := exec(r.pd.d, abi.CmdRegMR, &req, r.pd.d.backend.Extents(start, n, ours, writable), decode(&resp)); err != nil {
		return err
	}
	r.handle, r.lkey, r.rkey = resp.MRHandle, resp.LKey, resp.RKey
	return nil
}

// Bytes returns the memory.
func (r *MR) Bytes() []byte { return r.bytes }

// RKey returns the key that peers use to access the memory.
func (r *MR) RKey() uint32 { return r.rkey }

// LKey returns the key for scatter/gather entries.
func (r *MR) LKey() uint32 { return r.lkey }

// Addr returns the address that peers use for the byte at offset off.
func (r *MR) Addr(off int) uint64 { return r.base + uint64(off) }

// Uint32 and Uint64 return a word of the memory that peers also access: the target of atomics, or a flag
// that the program polls. They panic if off is not a multiple of the word's size or lies outside of the
// memory.
func (r *MR) Uint32(off int) *atomic.Uint32 { return protocol.Shared32(r.aligned(off, 4), 0) }

func (r *MR) Uint64(off int) *atomic.Uint64 { return protocol.Shared64(r.aligned(off, 8), 0) }

func (r *MR) aligned(off, size int) []byte {
	b := r.bytes[off : off+size]
	if ipc.AddressOf(b)%uint64(size) != 0 {
		panic(fmt.Sprintf("verbs: a word of %d bytes at %d is not aligned", size, off))
	}
	return b
}

// Slice returns a scatter/gather entry for n bytes at offset off. It panics if they lie outside of the
// memory, as slicing does.
func (r *MR) Slice(off, n int) SGE {
	_ = r.bytes[off : off+n]
	return SGE{Addr: r.base + uint64(off), Length: uint32(n), LKey: r.lkey}
}

// Close deregisters the memory. Memory from Alloc is unmapped: later access to it crashes the program.
func (r *MR) Close() (err error) {
	r.once.Do(func() {
		_, err = exec(r.pd.d, abi.CmdDeregMR, &abi.DeregMR{MRHandle: r.handle}, nil, answer{})
		if err = closed("deregister memory", err); err == nil {
			r.pd.d.backend.Free(&r.own)
		}
	})
	return err
}

// An SGE is an entry of a scatter/gather list.
type SGE struct {
	Addr   uint64
	Length uint32
	LKey   uint32
}

// An MW is a memory window. Binding it gives peers rights to a part of a memory region.
type MW struct {
	pd     *PD
	handle uint32
	made   uint32 // its key at creation
	rkey   uint32
}

// AllocMW creates a type 2 memory window, which a queue pair binds with a work request.
func (p *PD) AllocMW() (*MW, error) {
	var r abi.AllocMWResp
	req := abi.AllocMW{Response: p.d.response(), PDHandle: p.handle, MWType: abi.MWType2}
	if _, err := exec(p.d, abi.CmdAllocMW, &req, nil, decode(&r)); err != nil {
		return nil, fault("allocate a memory window", err)
	}
	return &MW{pd: p, handle: r.MWHandle, made: r.RKey, rkey: r.RKey}, nil
}

// RKey returns the window's current key.
func (w *MW) RKey() uint32 { return w.rkey }

// NextRKey sets and returns the key for the next binding. It changes the low 8 bits, which belong to the
// owner, so that peers cannot use the old key.
func (w *MW) NextRKey() uint32 {
	w.rkey = w.rkey&^0xff | (w.rkey+1)&0xff
	return w.rkey
}

// handleKey returns the key by which the device knows the window: the key at its creation.
func (w *MW) handleKey() uint32 { return w.made }

// Close frees the window.
func (w *MW) Close() error {
	_, err := exec(w.pd.d, abi.CmdDeallocMW, &abi.DeallocMW{MWHandle: w.handle}, nil, answer{})
	return closed("free a memory window", err)
}
