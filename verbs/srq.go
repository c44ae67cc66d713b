package verbs

import (
	"errors"
	"sync"

	"vrdma.dev/vrdma/internal/abi"
)

// An SRQ is a receive queue that several queue pairs share. Any goroutine may use it.
type SRQ struct {
	d      *Device
	handle uint32
	id     uint64
	sge    int
	size   int

	mu   sync.Mutex
	ring *ring // nil after Close
}

// CreateSRQ creates a shared receive queue for receives requests of up to entries SGL entries each; 0
// selects 1 entry.
func (p *PD) CreateSRQ(receives, entries int) (*SRQ, error) {
	const op = "create a shared receive queue"
	if receives <= 0 || entries < 0 {
		return nil, fault(op, errors.New("the number of receives must be positive"))
	}
	s := &SRQ{d: p.d}
	s.id = p.d.track(s)
	req := abi.CreateSRQ{Response: p.d.response(), UserHandle: s.id, PDHandle: p.handle, MaxWR: uint32(receives), MaxSGE: uint32(max(entries, 1))}
	var r abi.CreateSRQResp
	var rx abi.RxeCreateSRQResp
	if _, err := exec(p.d, abi.CmdCreateSRQ, &req, nil, decode2(&r, &rx)); err != nil {
		p.d.objects.Delete(s.id)
		return nil, queueFault(op, err)
	}
	s.handle, s.size, s.sge = r.SRQHandle, int(r.MaxWR), int(r.MaxSGE)
	ring, err := p.d.newRing(&rx.MI)
	if err != nil {
		s.Close()
		return nil, fault(op, err)
	}
	s.ring = ring
	return s, nil
}

// Size returns the queue's capacity in receives.
func (s *SRQ) Size() int { return s.size }

// PostRecv posts a receive. The first queue pair that needs a receive takes it.
func (s *SRQ) PostRecv(wr *RecvWR) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ring == nil {
		return errRecvClosed
	}
	return s.ring.receive(wr, s.sge)
}

// SetLimit requests one EventSRQLimit event when fewer than n receives are left.
func (s *SRQ) SetLimit(n int) error {
	req := abi.ModifySRQ{SRQHandle: s.handle, AttrMask: abi.SRQMaskLimit, SRQLimit: uint32(n)}
	_, err := exec(s.d, abi.CmdModifySRQ, &req, nil, answer{driver: make([]byte, abi.Size[abi.RxeModifySRQCmd]())})
	return fault("set the limit of a shared receive queue", err)
}

// Close destroys the queue. Close the queue pairs that use it first.
func (s *SRQ) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var r abi.DestroySRQResp
	_, err := exec(s.d, abi.CmdDestroySRQ, &abi.DestroySRQ{Response: s.d.response(), SRQHandle: s.handle}, nil, decode(&r))
	if err = closed("free a shared receive queue", err); err != nil {
		return err
	}
	s.d.objects.Delete(s.id)
	if s.ring != nil {
		s.ring.close()
		s.ring = nil
	}
	return nil
}
