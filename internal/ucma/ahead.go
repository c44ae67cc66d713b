package ucma

import (
	"vrdma/internal/abi"
	"vrdma/internal/protocol"
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

// Foresee adds to the reply to a GET_EVENT the answers to what follows; revision is the
// identifier's. It runs where the command ran, on the loop.
func (c *Call) Foresee(r *protocol.ReplyBuilder, revision func(id uint32) uint64) {
	for _, q := range c.follow {
		a := protocol.Ahead{Command: q.command, ID: c.about, Key: q.key, Revision: revision(c.about)}
		ask := Call{ch: c.ch}
		switch q.command {
		case abi.CMCmdQueryRoute:
			var resp abi.CMQueryRouteResp
			if queryRoute(&ask, &abi.CMQuery{ID: c.about}, &resp) != nil {
				continue
			}
			a.Data = abi.Encode(nil, &resp)
		case abi.CMCmdInitQPAttr:
			var resp abi.QPAttr
			if initQPAttr(&ask, &abi.CMInitQPAttr{ID: c.about, QPState: q.key}, &resp) != nil {
				continue
			}
			a.Data = abi.Encode(nil, &resp)
		}
		r.Ahead(a)
	}
}
