package transport

import "vrdma.dev/vrdma/internal/ib"

// common is what the two halves of a queue pair share. Conf, Attr, Path and Burst are set
// by the QP and only read by the halves. Pace, Count, State and Failed are written by both;
// State only through fail and, for the state SQE, by the requester.
type common struct {
	Conf  Config
	Attr  Attr
	Path  Path
	Burst uint32 // bytes in a burst at most, on this path
	State ib.State
	// Failed: State has become Error in this call. Both queues are flushed before it ends.
	Failed bool
	Pace   pacer
	Count  Counters
}

// A reqCall is what the requester works with during one call of the QP.
type reqCall struct {
	*common
	now ib.Time
	h   requesterEnv
	out Sender
	sc  *Scratch
}

// A respCall is what the responder works with during one call of the QP.
type respCall struct {
	*common
	now ib.Time
	h   responderEnv
	out Sender
	sc  *Scratch
}

// running reports whether the requester may send and take answers.
func (c *common) running() bool { return c.State == ib.StateRTS || c.State == ib.StateSQD }

// fail moves the queue pair to the state Error. The other half learns of it at the end of
// the call, when QP.endCall stops both and flushes their queues.
func (c *common) fail() {
	if c.State != ib.StateError {
		c.State, c.Failed = ib.StateError, true
	}
}

// unacknowledged reports whether the queue pair sends what only the pacer holds back. Our
// own hosts ask for no more READ data than they can take.
func (c *common) unacknowledged() bool {
	return c.Path.Remote && (c.Conf.Type != ib.RC || !c.Path.Own)
}

// address resets b and fills in what all bursts of a connected queue pair share.
func (c *common) address(b *Burst, k Kind) {
	// Cleared in place: a literal would be made elsewhere first, and copied.
	*b = Burst{}
	b.Type, b.Kind, b.Src, b.Dst = c.Conf.Type, k, c.Conf.Num, c.Attr.DestQPN
	b.SGID, b.DGID, b.PKey, b.MTU = c.Attr.SGID, c.Attr.DGID, c.Attr.PKey, c.Attr.MTU
}

// countSent counts b, which is about to leave.
func (c *common) countSent(b *Burst) {
	c.Count.SentPackets += uint64(b.Packets)
	c.Count.SentBytes += uint64(b.size())
}

// transmit hands b to the link and counts it.
func (c *reqCall) transmit(b *Burst) {
	c.countSent(b)
	c.out.Send(b)
}

// transmit hands b to the link and counts it.
func (c *respCall) transmit(b *Burst) {
	c.countSent(b)
	c.out.Send(b)
}
