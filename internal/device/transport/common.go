package transport

import "vrdma.dev/vrdma/internal/ib"

// common is the state that the two halves of a queue pair share. The QP sets Conf, Attr, Path and
// Burst; the halves only read them. Both halves write Pace, Count, State and Failed. They write
// State only through fail; the requester also sets SQE.
type common struct {
	Conf  Config   `cbor:"1,keyasint,omitzero"`
	Attr  Attr     `cbor:"2,keyasint,omitzero"`
	Path  Path     `cbor:"3,keyasint,omitzero"`
	Burst uint32   `cbor:"4,keyasint,omitempty"` // maximum bytes in a burst on this path
	State ib.State `cbor:"5,keyasint,omitempty"`
	// Failed means that State became Error in this call. QP.endCall flushes both queues.
	Failed bool     `cbor:"6,keyasint,omitempty"`
	Pace   pacer    `cbor:"7,keyasint,omitzero"`
	Count  Counters `cbor:"8,keyasint,omitzero"`
}

// A reqCall is the requester's context during one call of the QP.
type reqCall struct {
	*common
	now ib.Time
	h   requesterEnv
	out Sender
	sc  *Scratch
}

// A respCall is the responder's context during one call of the QP.
type respCall struct {
	*common
	now ib.Time
	h   responderEnv
	out Sender
	sc  *Scratch
}

// running reports whether the requester may send and process responses.
func (c *common) running() bool { return c.State == ib.StateRTS || c.State == ib.StateSQD }

// fail moves the queue pair to the state Error. At the end of the call, QP.endCall stops both halves
// and flushes their queues.
func (c *common) fail() {
	if c.State != ib.StateError {
		c.State, c.Failed = ib.StateError, true
	}
}

// unacknowledged reports whether only the pacer limits what the queue pair sends. vrdma hosts need no
// pacing of READ responses: they request no more READ data than they can receive.
func (c *common) unacknowledged() bool {
	return c.Path.Remote && (c.Conf.Type != ib.RC || !c.Path.Own)
}

// address resets b and fills in what all bursts of a connected queue pair share.
func (c *common) address(b *Burst, k Kind) {
	// Clear in place: the compiler would build a composite literal elsewhere and copy it.
	*b = Burst{}
	b.Type, b.Kind, b.Src, b.Dst = c.Conf.Type, k, c.Conf.Num, c.Attr.DestQPN
	b.SGID, b.DGID, b.PKey, b.MTU = c.Attr.SGID, c.Attr.DGID, c.Attr.PKey, c.Attr.MTU
}

// countSent counts b, which is about to be sent.
func (c *common) countSent(b *Burst) {
	c.Count.SentPackets += uint64(b.Packets)
	c.Count.SentBytes += uint64(b.size())
}

// transmit counts b and passes it to the link.
func (c *reqCall) transmit(b *Burst) {
	c.countSent(b)
	c.out.Send(b)
}

// transmit counts b and passes it to the link.
func (c *respCall) transmit(b *Burst) {
	c.countSent(b)
	c.out.Send(b)
}
