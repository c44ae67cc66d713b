package fault

import (
	"fmt"
	"strings"
)

// An Action is what happens to what a rule selects.
type Action uint8

// Actions.
const (
	None Action = iota
	Drop
	Duplicate
	Reorder
	Delay
	Corrupt
	Limit // of bandwidth
	RNR
	NakSequence
	NakAccess
	RetryExceeded
	QPError
	Vanish
	DeviceFatal
	PortDown
	GIDChange
	CMReject
	CMTimeout
	RegMR
	CompletionDelay
	Suspend
	NumActions // how many there are
)

// Traits are what actions have in common.
type Traits uint16

const (
	isPacket     Traits = 1 << iota // it hits packets
	isPassing                       // the packet arrives all the same: other rules may hit it, too
	isReliable                      // it hits requests of reliable connections only
	isEvent                         // it happens once; without selectors of packets at a time
	isConnect                       // it hits connections of rdma_cm
	isCall                          // it hits a call
	isCompletion                    // it hits completions
	isReorder
	isNIC // it happens to a NIC, never to a program
	hasTime
	hasJitter
	hasRate
)

// actions describes each action.
var actions = [NumActions]struct {
	name   string
	traits Traits
	help   string
}{
	Drop:            {"drop", isPacket, "the packet is lost"},
	Duplicate:       {"duplicate", isPacket | isPassing, "the packet arrives twice"},
	Reorder:         {"reorder", isPacket | isPassing | isReorder | hasTime, "the packet arrives after the next packet of its queue pair, or after time (default: 1ms)"},
	Delay:           {"delay", isPacket | isPassing | hasTime | hasJitter, "the packet arrives time later, up to jitter more"},
	Corrupt:         {"corrupt", isPacket, "the packet has a wrong ICRC, so that the receiver drops it"},
	Limit:           {"rate", isPacket | isPassing | hasRate, "packets arrive at this rate"},
	RNR:             {"rnr", isPacket | isReliable, "the request is answered with an RNR NAK, as if no receive were posted"},
	NakSequence:     {"nak-sequence", isPacket | isReliable, "the request is answered with a sequence NAK"},
	NakAccess:       {"nak-access", isPacket | isReliable, "the request is answered with the NAK for a remote access error"},
	RetryExceeded:   {"retry-exceeded", isPacket | isReliable, "the oldest request fails with IBV_WC_RETRY_EXC_ERR"},
	QPError:         {"qp-error", isPacket, "the queue pair enters the error state, with IBV_EVENT_QP_FATAL"},
	Vanish:          {"vanish", isPacket, "from this packet on, all packets and connections to and from the peer are lost"},
	DeviceFatal:     {"device-fatal", isPacket | isEvent, "IBV_EVENT_DEVICE_FATAL: every queue pair fails, and every command returns EIO"},
	PortDown:        {"port-down", isPacket | isEvent, "IBV_EVENT_PORT_ERR: the port is down and loses all packets, until for has passed"},
	GIDChange:       {"gid-change", isPacket | isEvent, "IBV_EVENT_GID_CHANGE: the addresses move to other rows of the GID table"},
	CMReject:        {"cm-reject", isConnect, "a connection request of rdma_cm is rejected"},
	CMTimeout:       {"cm-timeout", isConnect, "a connection request of rdma_cm gets no answer"},
	RegMR:           {"reg-mr", isCall, "ibv_reg_mr fails with ENOMEM"},
	CompletionDelay: {"completion-delay", isCompletion | hasTime | hasJitter, "the completion appears time later; later ones of the queue wait behind it"},
	Suspend:         {"suspend", isPacket | isEvent | isNIC, "the NIC stands still, as while it moves to another host, until for has passed: requests of other hosts get RNR NAKs"},
}

// String is the action's name in a SPEC.
func (a Action) String() string {
	if a >= NumActions {
		return fmt.Sprintf("action %d", uint8(a))
	}
	return actions[a].name
}

// Traits returns the traits of a.
func (a Action) Traits() Traits {
	if a >= NumActions {
		return 0
	}
	return actions[a].traits
}

// OfNIC reports whether a happens to a NIC only: a program cannot have it.
func (a Action) OfNIC() bool { return a.Traits()&isNIC != 0 }

func actionByName(name string) (Action, bool) {
	for a := Drop; a < NumActions; a++ {
		if actions[a].name == name {
			return a, true
		}
	}
	return None, false
}

// ActionNames are the names of all actions.
func ActionNames() (names []string) {
	for a := Drop; a < NumActions; a++ {
		names = append(names, actions[a].name)
	}
	return names
}

// Ops is a set of operations.
type Ops uint16

// Operations, as packets have them.
const (
	Send Ops = 1 << iota
	Write
	Read
	Atomic
	Flush
	ReadResponse
	Ack // and the response to an atomic

	allOps     = Ack<<1 - 1
	defaultOps = allOps &^ Ack
	// Requests are answered.
	Requests = Send | Write | Read | Atomic | Flush
)

var opNames = []string{"send", "write", "read", "atomic", "flush", "read-response", "ack"}

func (o *Ops) set(v string) error {
	var all Ops
	for name := range strings.SplitSeq(v, "+") {
		found := Ops(0)
		for i, n := range opNames {
			if n == name {
				found = 1 << i
			}
		}
		if name == "any" {
			found = allOps
		}
		if found == 0 {
			return fmt.Errorf("%q is not an operation: write any, or some of %s joined by +", name, strings.Join(opNames, ", "))
		}
		all |= found
	}
	*o = all
	return nil
}

// String joins the names of the operations.
func (o Ops) String() string {
	if o == allOps {
		return "any"
	}
	var names []string
	for i, n := range opNames {
		if o&(1<<i) != 0 {
			names = append(names, n)
		}
	}
	return strings.Join(names, "+")
}
