package ucma

import (
	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/cm/rdmacm"
)

// foreseen is what librdmacm asks after an event, by command and key, which is the state of the
// queue pair for INIT_QP_ATTR. It is answered with the event (shim/protocol.h). What follows
// another command of the program's is not there: that command revokes it.
var foreseen = map[uint32][]question{
	abi.CMEventAddrResolved:    {route},
	abi.CMEventRouteResolved:   {route, toInit},
	abi.CMEventConnectRequest:  {route, toInit, toRTR, toRTS},
	abi.CMEventConnectResponse: {toInit, toRTR, toRTS},
}

var (
	route  = question{abi.CMCmdQueryRoute, 0}
	toInit = question{abi.CMCmdInitQPAttr, abi.QPStateInit}
	toRTR  = question{abi.CMCmdInitQPAttr, abi.QPStateRTR}
	toRTS  = question{abi.CMCmdInitQPAttr, abi.QPStateRTS}
)

type question struct{ command, key uint32 }

// A Seer says ahead what follows from an event.
type Seer struct {
	Channel  *rdmacm.Channel
	NodeGUID uint64                 // the device's
	Revision func(id uint32) uint64 // of an identifier, see protocol.Mail
}

// Foresee adds to a reply that hands e out the answers to what follows. It runs on the loop.
func (s *Seer) Foresee(e *abi.CMEventResp, r *protocol.ReplyBuilder) {
	follow := foreseen[e.Event]
	if len(follow) == 0 {
		return
	}
	id, err := s.Channel.ID(e.ID)
	if err != nil {
		return
	}
	a := protocol.Ahead{ID: e.ID, Revision: s.Revision(e.ID)}
	var room [512]byte // for either answer
	for _, q := range follow {
		a.Command, a.Key = q.command, q.key
		if q == route {
			q := id.Query()
			resp := routeOf(&q, s.NodeGUID)
			a.Data = abi.Encode(room[:0], &resp)
		} else if resp, err := id.QPAttr(q.key); err == nil {
			a.Data = abi.Encode(room[:0], &resp)
		} else {
			continue
		}
		r.Ahead(a)
	}
}

// HandOut makes the reply that hands e out to a client that takes it by itself. Where the event
// is stored the client knows.
func (s *Seer) HandOut(e *abi.CMEventResp, r *protocol.ReplyBuilder) {
	var room [512]byte
	r.Store(0, abi.Encode(room[:0], e))
	s.Foresee(e, r)
}
