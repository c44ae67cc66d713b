package nic

import (
	"syscall"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// mwAccess are the flags that a window may be bound with, as in rxe: those that mean
// nothing to a window (local write, bind) are harmless.
const mwAccess = ib.Access(accessSupported) | ib.AccessZeroBased

// An MW is a memory window: a part of a region under a key of its own. Type 1 is
// bound again and again and belongs to a protection domain; type 2 (2B) is bound
// when free, to one queue pair, and freed by invalidation.
type MW struct {
	session *Session
	pd      *PD
	typ     uint8
	rkey    uint32
	mr      *MR // nil: not bound
	qp      *QP // type 2: the queue pair that bound it
	addr    uint64
	length  uint64
	access  ib.Access
}

func (w *MW) key() uint32 { return w.rkey }

// MWInfo describes a window.
type MWInfo struct{ Handle, RKey uint32 }

// AllocMW makes an unbound window.
func (s *Session) AllocMW(pdh uint32, typ uint8) (MWInfo, error) {
	pd, err := s.pds.get(pdh)
	if err != nil {
		return MWInfo{}, err
	}
	if typ != abi.MWType1 && typ != abi.MWType2 {
		return MWInfo{}, syscall.EINVAL
	}
	w := &MW{session: s, pd: pd, typ: typ, rkey: s.nic.newKey()}
	h, err := s.mws.add(w)
	if err != nil {
		return MWInfo{}, err
	}
	pd.refs++
	s.nic.keys[w.rkey>>8] = w
	return MWInfo{Handle: h, RKey: w.rkey}, nil
}

// DeallocMW ends a window, bound or not.
func (s *Session) DeallocMW(h uint32) error {
	w, err := s.mws.get(h)
	if err != nil {
		return err
	}
	s.mws.remove(h)
	w.free()
	return nil
}

func (w *MW) free() {
	w.unbind()
	w.pd.refs--
	delete(w.session.nic.keys, w.rkey>>8)
}

func (w *MW) unbind() {
	if w.mr != nil {
		w.mr.windows--
	}
	if w.qp != nil {
		delete(w.qp.bound, w)
	}
	w.mr, w.qp, w.addr, w.length, w.access = nil, nil, 0, 0, 0
}

// allows checks key and rights of an access through the window. Only the pd of a window that another loop serves may be read.
func (w *MW) allows(q *QP, rkey uint32, need ib.Access) bool {
	return w.pd == q.pd && w.rkey == rkey && w.mr != nil && (w.typ != abi.MWType2 || w.qp == q) && w.access&need == need
}

// resolve checks an access through the window.
func (w *MW) resolve(q *QP, rkey uint32, va, n uint64, need ib.Access) (*MR, uint64) {
	if !w.allows(q, rkey, need) {
		return nil, 0
	}
	base := w.addr
	if w.access&ib.AccessZeroBased != 0 {
		base = 0
	}
	if va < base || va-base > w.length || n > w.length-(va-base) {
		return nil, 0
	}
	return w.mr, w.addr + (va - base) - w.mr.iova
}

// bind performs IBV_WR_BIND_MW.
func (q *qpNIC) bind(r *transport.SendWQE) transport.Status {
	w, ok := q.nic.keys[r.MWRKey>>8].(*MW)
	if !ok || w.session != q.session || w.pd != q.pd || w.rkey != r.MWRKey {
		return transport.MWBindErr
	}
	a := ib.Access(r.MWAccess)
	if a&^mwAccess != 0 {
		return transport.MWBindErr
	}
	if w.typ == abi.MWType1 && a&ib.AccessZeroBased != 0 {
		return transport.MWBindErr
	}
	if w.typ == abi.MWType2 && (w.mr != nil || r.MWLength == 0) {
		return transport.MWBindErr
	}
	var m *MR
	if r.MWLength > 0 {
		if m, ok = q.nic.keys[r.MRLKey>>8].(*MR); !ok || m.lkey != r.MRLKey || !mayBind(m, w, r, a) {
			return transport.MWBindErr
		}
	}
	w.unbind()
	w.rkey = w.rkey&^0xff | r.RKey&0xff
	if m == nil {
		return transport.Success
	}
	w.bindTo(m, q.qp(), r.RemoteAddr, r.MWLength, a)
	return transport.Success
}

// bindTo binds w, which is not bound. q is the queue pair that did it.
func (w *MW) bindTo(m *MR, q *QP, addr, length uint64, a ib.Access) {
	w.mr, w.addr, w.length, w.access = m, addr, length, a
	m.windows++
	if w.typ == abi.MWType2 {
		w.qp = q
		if q.bound == nil {
			q.bound = make(map[*MW]struct{})
		}
		q.bound[w] = struct{}{}
	}
}

// mayBind are the checks of C10-73 to C10-75.
func mayBind(m *MR, w *MW, r *transport.SendWQE, a ib.Access) bool {
	if m.pd != w.pd || m.access&ib.AccessMWBind == 0 {
		return false
	}
	if a&(ib.AccessRemoteWrite|ib.AccessRemoteAtomic) != 0 && m.access&ib.AccessLocalWrite == 0 {
		return false
	}
	return m.covers(r.RemoteAddr, r.MWLength)
}

// invalidate frees a bound type 2 window; nothing else can be invalidated by user
// programs.
func (q *qpNIC) invalidate(rkey uint32) bool {
	w, ok := q.nic.keys[rkey>>8].(*MW)
	if !ok || w.pd != q.pd || w.rkey != rkey || w.typ != abi.MWType2 || w.mr == nil || w.qp != q.qp() {
		return false
	}
	w.unbind()
	return true
}
