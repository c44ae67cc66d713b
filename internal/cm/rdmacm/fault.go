package rdmacm

import (
	"syscall"
	"time"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/cm"
	"vrdma.dev/vrdma/internal/device/fault"
	"vrdma.dev/vrdma/internal/ib"
)

// fails decides whether a connection request of a client to a peer, or of a peer to it, fails on purpose (package
// fault): None, CMReject or CMTimeout.
func (a *CMA) fails(c *Client, peer ib.GID, out bool) fault.Action {
	plans := a.nic.Faults()
	if len(plans) == 0 && c.Faults == nil {
		return fault.None
	}
	now, x := time.Duration(a.now()), fault.Packet{Out: out, Peer: peer.Addr(), Pid: c.Pid, Device: a.nic.Name}
	for _, p := range plans {
		if what := p.Connect(now, x); what != fault.None {
			return what
		}
	}
	return c.Faults.Connect(now, x)
}

// rejected ends a connection attempt as if the peer's program had rejected it.
func (id *ID) rejected() {
	id.state = Connecting
	if id.ud() {
		id.tell(abi.CMEventUnreachable, cm.SidrRejected, nil, &abi.CMUDParam{})
		return
	}
	id.tell(abi.CMEventRejected, cm.RejectConsumer, &abi.CMConnParam{}, nil)
}

// unanswered ends a connection attempt as if no answer had come after all retries. It does not wait for them: they
// take a minute.
func (id *ID) unanswered() {
	id.state = Connecting
	if id.ud() {
		id.tell(abi.CMEventUnreachable, -int32(syscall.ETIMEDOUT), nil, &abi.CMUDParam{})
		return
	}
	id.tell(abi.CMEventUnreachable, -int32(syscall.ETIMEDOUT), &abi.CMConnParam{}, nil)
}
