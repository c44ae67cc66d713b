package ucma

import (
	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/cm/rdmacm"
)

// foreseen lists the commands that librdmacm sends after an event, by command and key; the key of INIT_QP_ATTR is the queue pair
// state. Their answers are sent with the event (shim/protocol.h). Commands that follow another command of the program are not
// listed, because that command revokes them.
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

// A Seer adds answers in advance to events.
type Seer struct {
	Channel  *rdmacm.Channel
	NodeGUID uint64                 // GUID of the device
	Revision func(id uint32) uint64 // revision of an identifier, see protocol.Mail
}

// Foresee adds the answers to the expected commands to a reply with event e. It runs on the loop.
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
	var room [512]byte // large enough for either answer
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

// HandOut builds the reply with event e for a client that takes events without a command. The client knows where to store the event.
func (s *Seer) HandOut(e *abi.CMEventResp, r *protocol.ReplyBuilder) {
	var room [512]byte
	r.Store(0, abi.Encode(room[:0], e))
	s.Foresee(e, r)
}
