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

// A PD is a protection domain: queue pairs reach only memory of their own.
type PD struct {
	d      *Device
	handle uint32
}

// AllocPD makes a protection domain.
func (d *Device) AllocPD() (*PD, error) {
	var r abi.AllocPDResp
	if _, err := exec(d, abi.CmdAllocPD, &abi.AllocPD{Response: d.response()}, nil, decode(&r)); err != nil {
		return nil, fault("make a protection domain", err)
	}
	return &PD{d, r.PDHandle}, nil
}

// Device is the one that it is of.
func (p *PD) Device() *Device { return p.d }

// Close frees it. Everything that was made in it is closed by then.
func (p *PD) Close() error {
	_, err := exec(p.d, abi.CmdDeallocPD, &abi.DeallocPD{PDHandle: p.handle}, nil, answer{})
	return closed("free a protection domain", err)
}

// closed is the result of closing something. What went with the device is closed.
func closed(op string, err error) error {
	if errors.Is(err, ErrClosed) || errors.Is(err, ErrGone) {
		return nil
	}
	return fault(op, err)
}

// An MR is registered memory.
type MR struct {
	pd     *PD
	bytes  []byte
	own    ipc.Mapped // what Alloc mapped
	handle uint32
	lkey   uint32
	rkey   uint32
	base   uint64 // the address that peers name its first byte by
	once   sync.Once
}

// Alloc makes memory and registers it. The device reaches it without copying, so this is the memory to
// use: allocate much, once, and slice it. It lies outside of Go's heap and is gone after Close.
func (p *PD) Alloc(size int, access Access) (*MR, error) {
	const op = "allocate registered memory"
	if size <= 0 {
		return nil, fault(op, errors.New("a size of 0 or less"))
	}
	page := os.Getpagesize()
	whole := uintptr((size + page - 1) / page * page)
	m, err := p.d.door.Allocate(whole)
	if err != nil {
		return nil, fault(op, err)
	}
	r := &MR{pd: p, bytes: m.Mem[:size:size], own: m}
	if err := r.register(access, true); err != nil {
		p.d.door.Free(&r.own)
		return nil, fault(op, err)
	}
	return r, nil
}

// Register registers memory of the caller's: a mapping, of a file say. The daemon reaches it by
// copying, so it is slower than what Alloc makes. It must not be of a goroutine's stack, which moves,
// and stays in use until Close.
func (p *PD) Register(b []byte, access Access) (*MR, error) {
	const op = "register memory"
	if len(b) == 0 {
		return nil, fault(op, errors.New("no memory"))
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
	if _, err := exec(r.pd.d, abi.CmdRegMR, &req, r.pd.d.door.Extents(start, n, ours, writable), decode(&resp)); err != nil {
		return err
	}
	r.handle, r.lkey, r.rkey = resp.MRHandle, resp.LKey, resp.RKey
	return nil
}

// Bytes is the memory.
func (r *MR) Bytes() []byte { return r.bytes }

// RKey is the key with which peers reach the memory.
func (r *MR) RKey() uint32 { return r.rkey }

// LKey is the key that scatter/gather entries have.
func (r *MR) LKey() uint32 { return r.lkey }

// Addr is the address that peers name its byte at off by.
func (r *MR) Addr(off int) uint64 { return r.base + uint64(off) }

// Uint32 and Uint64 are words of the memory that peers read or write, too: those of atomics, or one
// that is polled until a write has come. They panic if off is not a multiple of the word's size or the
// word is not in the memory.
func (r *MR) Uint32(off int) *atomic.Uint32 { return protocol.Shared32(r.aligned(off, 4), 0) }

func (r *MR) Uint64(off int) *atomic.Uint64 { return protocol.Shared64(r.aligned(off, 8), 0) }

func (r *MR) aligned(off, size int) []byte {
	b := r.bytes[off : off+size]
	if ipc.AddressOf(b)%uint64(size) != 0 {
		panic(fmt.Sprintf("verbs: a word of %d bytes at %d is not aligned", size, off))
	}
	return b
}

// Slice is a scatter/gather entry of n bytes from off on. It panics if they are not in the memory, as
// slicing does.
func (r *MR) Slice(off, n int) SGE {
	_ = r.bytes[off : off+n]
	return SGE{Addr: r.base + uint64(off), Length: uint32(n), LKey: r.lkey}
}

// Close deregisters the memory. What Alloc made is unmapped: who still looks at it crashes.
func (r *MR) Close() (err error) {
	r.once.Do(func() {
		_, err = exec(r.pd.d, abi.CmdDeregMR, &abi.DeregMR{MRHandle: r.handle}, nil, answer{})
		if err = closed("deregister memory", err); err == nil {
			r.pd.d.door.Free(&r.own)
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

// An MW is a memory window: rights to a part of registered memory that are given by binding it.
type MW struct {
	pd     *PD
	handle uint32
	made   uint32 // its key at first
	rkey   uint32
}

// AllocMW makes a memory window that a queue pair binds by a work request (type 2).
func (p *PD) AllocMW() (*MW, error) {
	var r abi.AllocMWResp
	req := abi.AllocMW{Response: p.d.response(), PDHandle: p.handle, MWType: abi.MWType2}
	if _, err := exec(p.d, abi.CmdAllocMW, &req, nil, decode(&r)); err != nil {
		return nil, fault("make a memory window", err)
	}
	return &MW{pd: p, handle: r.MWHandle, made: r.RKey, rkey: r.RKey}, nil
}

// RKey is the key that the window has now.
func (w *MW) RKey() uint32 { return w.rkey }

// NextRKey makes the key that the next binding gives it, and returns it: the low 8 bits are the
// owner's to change, so that who had the old one has nothing.
func (w *MW) NextRKey() uint32 {
	w.rkey = w.rkey&^0xff | (w.rkey+1)&0xff
	return w.rkey
}

// handleKey is the key that the device knows the window by: the one it was made with, but for the
// owner's 8 bits.
func (w *MW) handleKey() uint32 { return w.made }

// Close frees it.
func (w *MW) Close() error {
	_, err := exec(w.pd.d, abi.CmdDeallocMW, &abi.DeallocMW{MWHandle: w.handle}, nil, answer{})
	return closed("free a memory window", err)
}
