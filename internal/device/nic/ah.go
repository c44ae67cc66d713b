package nic

import (
	"slices"
	"syscall"

	"vrdma.dev/vrdma/internal/ib"
)

// AHAttr is an address: struct ib_uverbs_ah_attr by value.
type AHAttr struct {
	DGID         ib.GID `cbor:"1,keyasint,omitzero"`
	FlowLabel    uint32 `cbor:"2,keyasint,omitempty"`
	SGIDIndex    uint8  `cbor:"3,keyasint,omitempty"`
	HopLimit     uint8  `cbor:"4,keyasint,omitempty"`
	TrafficClass uint8  `cbor:"5,keyasint,omitempty"`
	DLID         uint16 `cbor:"6,keyasint,omitempty"`
	SL           uint8  `cbor:"7,keyasint,omitempty"`
	SrcPathBits  uint8  `cbor:"8,keyasint,omitempty"`
	StaticRate   uint8  `cbor:"9,keyasint,omitempty"`
	IsGlobal     bool   `cbor:"10,keyasint,omitempty"`
	PortNum      uint8  `cbor:"11,keyasint,omitempty"`
}

// An AH is an address handle, for UD.
type AH struct {
	pd   *PD
	attr AHAttr
	sgid ib.GID
}

// checkAddress finds the source GID of an address; EINVAL as the kernel says where
// it is not one that RoCE can use.
func (n *NIC) checkAddress(a *AHAttr) (ib.GID, error) {
	g, full := n.Face().Entry(int(a.SGIDIndex))
	if !a.IsGlobal || a.PortNum != thePort || !full {
		return ib.GID{}, syscall.EINVAL
	}
	return g.GID, nil
}

// CreateAH makes an address handle. Its number is what work requests name; it is
// never 0, which to the provider means an old kernel.
func (s *Session) CreateAH(pdh uint32, a AHAttr) (handle, num uint32, err error) {
	pd, err := s.pds.get(pdh)
	if err != nil {
		return 0, 0, err
	}
	sgid, err := s.nic.checkAddress(&a)
	if err != nil {
		return 0, 0, err
	}
	if err := s.nic.rules.mayAddress(s, a.DGID); err != nil {
		return 0, 0, err
	}
	h, err := s.ahs.add(&AH{pd: pd, attr: a, sgid: sgid})
	if err != nil {
		return 0, 0, err
	}
	pd.refs++
	return h, h + 1, nil
}

// DestroyAH ends an address handle.
func (s *Session) DestroyAH(h uint32) error {
	a, err := s.ahs.get(h)
	if err != nil {
		return err
	}
	a.pd.refs--
	s.ahs.remove(h)
	return nil
}

// AttachMcast joins a UD queue pair to a multicast group. Joining twice is once, as
// in the kernel.
func (s *Session) AttachMcast(qph uint32, gid ib.GID, lid uint16) error {
	q, err := s.qps.get(qph)
	if err != nil {
		return err
	}
	if q.typ != ib.UD || !gid.IsMulticast() {
		return syscall.EINVAL
	}
	if slices.Contains(q.groups, gid) {
		return nil
	}
	if err := q.nic.rules.mayJoin(q, gid); err != nil {
		return err
	}
	return q.join(gid)
}

// join makes q a member of a group.
func (q *QP) join(gid ib.GID) error {
	n, s := q.nic, q.session
	members, known := n.mcast[gid]
	if !known && len(n.mcast) >= n.Limits.McastGroups || len(members) >= n.Limits.McastAttach {
		return syscall.ENOMEM
	}
	if err := s.Account.Charge(memberBill); err != nil {
		return err
	}
	if !known {
		if err := q.found(gid); err != nil {
			s.Account.Refund(memberBill)
			return err
		}
	}
	n.mcast[gid] = append(members, q)
	q.groups = append(q.groups, gid)
	return nil
}

// found creates a group and charges it to the user of q.
func (q *QP) found(gid ib.GID) error {
	payer := q.session.Account
	if err := payer.Charge(groupBill); err != nil {
		return err
	}
	if err := q.owner.Join(gid); err != nil {
		payer.Refund(groupBill)
		return err
	}
	q.nic.groupAccounts[gid] = payer.Hold()
	return nil
}

// pass moves the charge for a group to the user of the member next; next is nil if the group has
// ended. If the budget of that user is exhausted, the charge stays with the old user.
func (n *NIC) pass(gid ib.GID, next *QP) {
	payer := n.groupAccounts[gid]
	if next != nil {
		a := next.session.Account
		if a == payer || a.Charge(groupBill) != nil {
			return
		}
		n.groupAccounts[gid] = a.Hold()
	} else {
		delete(n.groupAccounts, gid)
	}
	payer.Refund(groupBill)
	payer.Drop()
}

// DetachMcast leaves a group.
func (s *Session) DetachMcast(qph uint32, gid ib.GID, lid uint16) error {
	q, err := s.qps.get(qph)
	if err != nil {
		return err
	}
	i := slices.Index(q.groups, gid)
	if i < 0 {
		return syscall.EINVAL
	}
	q.groups = slices.Delete(q.groups, i, i+1)
	q.leave(gid)
	return nil
}

func (q *QP) leave(gid ib.GID) {
	q.session.Account.Refund(memberBill)
	m := q.nic.mcast[gid]
	// A new slice: a burst may be on its way through the old one.
	rest := make([]*QP, 0, len(m))
	for _, o := range m {
		if o != q {
			rest = append(rest, o)
		}
	}
	if len(rest) == 0 {
		delete(q.nic.mcast, gid)
		q.owner.Leave(gid)
		q.nic.pass(gid, nil)
	} else {
		q.nic.mcast[gid] = rest
		if q.nic.groupAccounts[gid] == q.session.Account {
			q.nic.pass(gid, rest[0])
		}
	}
}

func (q *QP) detachAll() {
	for _, g := range q.groups {
		q.leave(g)
	}
	q.groups = nil
}
