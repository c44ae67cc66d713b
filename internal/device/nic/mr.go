package nic

import (
	"syscall"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/ib"
)

const (
	// accessKnown are the flags that have a meaning, beside the optional ones, which are
	// ignored and not refused.
	accessKnown = abi.AccessFlushPersistent<<1 - 1

	accessSupported = uint32(ib.AccessLocalWrite | ib.AccessRemoteWrite | ib.AccessRemoteRead |
		ib.AccessRemoteAtomic | ib.AccessMWBind | ib.AccessFlushGlobal | ib.AccessFlushPersist)
)

// regionWrites are the rights for which the process itself must be able to write the memory.
const regionWrites = ib.AccessLocalWrite | ib.AccessRemoteWrite | ib.AccessRemoteAtomic | ib.AccessMWBind

// An MR is a memory region: an address range as peers and work requests name it,
// over registered memory.
type MR struct {
	session *Session
	serial  uint32
	pd      *PD
	lkey    uint32
	iova    uint64
	length  uint64
	access  ib.Access
	region  *memory.Region
	windows int // bound to it
	gone    bool
}

func (m *MR) key() uint32 { return m.lkey }

// MRParams ask for a region.
type MRParams struct {
	PD                   uint32
	Start, Length, HcaVA uint64
	Access               uint32
	Region               *memory.Region
}

// Check says whether memory may be registered like that, as ib_check_mr_access does. It
// looks at no object, so that a caller can ask before it maps anything.
func (p *MRParams) Check() (ib.Access, error) {
	// The same bytes of the first page on both sides, or offsets would differ.
	if p.Start&(pageSize-1) != p.HcaVA&(pageSize-1) || p.HcaVA+p.Length < p.HcaVA {
		return 0, syscall.EINVAL
	}
	access := ib.Access(p.Access &^ abi.AccessOptional)
	if access&(ib.AccessRemoteWrite|ib.AccessRemoteAtomic) != 0 && access&ib.AccessLocalWrite == 0 {
		return 0, syscall.EINVAL
	}
	if uint32(access)&^accessKnown != 0 {
		return 0, syscall.EINVAL
	}
	if uint32(access)&^accessSupported != 0 {
		return 0, syscall.EOPNOTSUPP
	}
	return access, nil
}

// MRInfo describes one.
type MRInfo struct{ Handle, LKey, RKey uint32 }

// RegMR makes a memory region over p.Region, which it owns from then on if it
// succeeds.
func (s *Session) RegMR(p MRParams) (MRInfo, error) {
	if len(s.faults) > 0 && s.fails() {
		return MRInfo{}, syscall.ENOMEM
	}
	pd, err := s.pds.get(p.PD)
	if err != nil {
		return MRInfo{}, err
	}
	a, err := p.Check()
	if err != nil {
		return MRInfo{}, err
	}
	if a&regionWrites != 0 && !p.Region.Writable() {
		return MRInfo{}, syscall.EFAULT
	}
	m := &MR{
		serial:  s.nic.Serial(),
		session: s, pd: pd, lkey: s.nic.newKey(), iova: p.HcaVA, length: p.Length, access: a, region: p.Region,
	}
	h, err := s.mrs.add(m)
	if err != nil {
		return MRInfo{}, err
	}
	pd.refs++
	s.nic.keys[m.lkey>>8] = m
	s.nic.tally.registered += m.length
	return MRInfo{Handle: h, LKey: m.lkey, RKey: m.lkey}, nil
}

// DeregMR ends a region that has no windows. Work that still names it fails.
func (s *Session) DeregMR(h uint32) error {
	m, err := s.mrs.get(h)
	if err != nil {
		return err
	}
	if m.windows > 0 {
		return syscall.EINVAL
	}
	s.mrs.remove(h)
	m.free()
	return nil
}

func (m *MR) free() {
	m.gone = true
	m.pd.refs--
	delete(m.session.nic.keys, m.lkey>>8)
	m.session.nic.tally.registered -= m.length
	m.region.Release()
}

// covers reports whether [va, va+n) lies in the region.
func (m *MR) covers(va uint64, n uint64) bool {
	return va >= m.iova && va-m.iova <= m.length && n <= m.length-(va-m.iova)
}

// local finds the region for n bytes at va, part of a scatter/gather entry with this key.
// As in rxe, only the bytes that are touched have to lie in the region: programs post
// receives that are longer than their buffer.
func (q *qpNIC) local(lkey uint32, va uint64, n uint32, need ib.Access) *MR {
	m := q.lastMR
	if m == nil || m.lkey != lkey || m.gone {
		var ok bool
		if m, ok = q.nic.keys[lkey>>8].(*MR); !ok || m.lkey != lkey {
			return nil
		}
		q.lastMR = m
	}
	if m.pd != q.pd || m.access&need != need || !m.covers(va, uint64(n)) {
		return nil
	}
	return m
}

// remote finds what a peer's key names, if the peer may do this with it: the region
// and where in it the access begins.
func (q *qpNIC) remote(rkey uint32, va uint64, n uint64, need ib.Access) (*MR, uint64) {
	if m := q.lastRemote; m != nil && m.lkey == rkey && !m.gone {
		if m.pd == q.pd && m.access&need == need && m.covers(va, n) {
			return m, va - m.iova
		}
		return nil, 0
	}
	switch k := q.nic.keys[rkey>>8].(type) {
	case *MR:
		if k.lkey == rkey && k.pd == q.pd && k.access&need == need && k.covers(va, n) {
			q.lastRemote = k
			return k, va - k.iova
		}
	case *MW:
		return k.resolve(q.qp(), rkey, va, n, need)
	}
	return nil, 0
}
