package transport

import "vrdma.dev/vrdma/internal/ib"

// Attr are the attributes that MODIFY_QP sets.
type Attr struct {
	State           ib.State      `cbor:"1,keyasint,omitempty"`
	MTU             uint32        `cbor:"2,keyasint,omitempty"` // bytes
	QKey            uint32        `cbor:"3,keyasint,omitempty"`
	RQPSN           uint32        `cbor:"4,keyasint,omitempty"`
	SQPSN           uint32        `cbor:"5,keyasint,omitempty"`
	DestQPN         uint32        `cbor:"6,keyasint,omitempty"`
	Access          ib.Access     `cbor:"7,keyasint,omitempty"`
	PKey            uint16        `cbor:"8,keyasint,omitempty"`
	MaxRDAtomic     uint8         `cbor:"9,keyasint,omitempty"`  // initiator depth
	MaxDestRDAtomic uint8         `cbor:"10,keyasint,omitempty"` // responder resources
	MinRNRTimer     uint8         `cbor:"11,keyasint,omitempty"`
	Timeout         uint8         `cbor:"12,keyasint,omitempty"`
	RetryCount      uint8         `cbor:"13,keyasint,omitempty"`
	RNRRetry        uint8         `cbor:"14,keyasint,omitempty"`
	SGID            ib.GID        `cbor:"15,keyasint,omitzero"`
	DGID            ib.GID        `cbor:"16,keyasint,omitzero"`
	SQDAsyncNotify  bool          `cbor:"17,keyasint,omitempty"`
	Denied          ib.Operations `cbor:"18,keyasint,omitempty"` // set by QP.Deny, not by MODIFY_QP
}

// Config is the part of a queue pair's configuration that never changes.
type Config struct {
	Type     ib.Service `cbor:"1,keyasint,omitempty"`
	Num      uint32     `cbor:"2,keyasint,omitempty"`
	MaxBurst uint32     `cbor:"3,keyasint,omitempty"` // maximum payload of one burst in bytes; 0 means 64 KiB
	Window   uint32     `cbor:"4,keyasint,omitempty"` // maximum packets in flight; 0 means 8192
	MTU      uint32     `cbor:"5,keyasint,omitempty"` // the port's MTU: maximum UD message, and path MTU until MODIFY_QP sets one; 0 means 4096
	SRQ      bool       `cbor:"6,keyasint,omitempty"` // receives come from a shared queue: the queue pair does not flush them, and raises LastWQE
}

// Modify sets the attributes in mask and then changes the state.
func (q *QP) Modify(a *Attr, mask ib.AttrMask, now ib.Time, h *Env) {
	c := &q.common
	if mask&ib.MaskState != 0 && a.State == ib.StateReset {
		count, path := c.Count, c.Path
		q.Init(c.Conf)
		c.Count = count
		q.SetPath(path)
		return
	}
	q.apply(a, mask)
	q.fitPath()
	if mask&ib.MaskState != 0 {
		q.enter(a.State, now, h)
		q.endCall(now, h)
	}
}

// apply sets the attributes in mask.
func (q *QP) apply(a *Attr, mask ib.AttrMask) {
	c := &q.common
	set8 := func(m ib.AttrMask, dst *uint8, v uint8) {
		if mask&m != 0 {
			*dst = v
		}
	}
	set32 := func(m ib.AttrMask, dst *uint32, v uint32) {
		if mask&m != 0 {
			*dst = v
		}
	}
	set32(ib.MaskQKey, &c.Attr.QKey, a.QKey)
	set32(ib.MaskMTU, &c.Attr.MTU, a.MTU)
	set32(ib.MaskDestQPN, &c.Attr.DestQPN, a.DestQPN)
	set8(ib.MaskTimeout, &c.Attr.Timeout, a.Timeout)
	set8(ib.MaskRetryCount, &c.Attr.RetryCount, a.RetryCount)
	set8(ib.MaskRNRRetry, &c.Attr.RNRRetry, a.RNRRetry)
	set8(ib.MaskMaxRDAtomic, &c.Attr.MaxRDAtomic, a.MaxRDAtomic)
	set8(ib.MaskMinRNRTimer, &c.Attr.MinRNRTimer, a.MinRNRTimer)
	if c.Attr.MTU < 256 || c.Attr.MTU > 4096 {
		c.Attr.MTU = min(max(c.Attr.MTU, 256), 4096)
	}
	if mask&ib.MaskAccess != 0 {
		c.Attr.Access = a.Access
	}
	if mask&ib.MaskPKey != 0 {
		c.Attr.PKey = a.PKey
	}
	if mask&ib.MaskAV != 0 {
		c.Attr.SGID, c.Attr.DGID = a.SGID, a.DGID
	}
	if mask&ib.MaskSQDAsyncNotify != 0 {
		c.Attr.SQDAsyncNotify = a.SQDAsyncNotify
	}
	if mask&ib.MaskMaxDestRDAtomic != 0 {
		if n := min(a.MaxDestRDAtomic, MaxResources); n != c.Attr.MaxDestRDAtomic {
			c.Attr.MaxDestRDAtomic = n
			q.resp.Res = resources{} // the stored responses are invalid now
		}
	}
	if mask&ib.MaskRQPSN != 0 {
		q.resp.PSN, q.resp.AckPSN = a.RQPSN&ib.PSNMask, a.RQPSN&ib.PSNMask
	}
	if mask&ib.MaskSQPSN != 0 {
		p := a.SQPSN & ib.PSNMask
		q.req.PSN, q.req.Una, q.req.Max, q.req.TailPSN = p, p, p, p
		q.req.Repair.Arrived, q.req.CC.Seen = p, p
	}
	if mask&ib.MaskRetryCount != 0 {
		q.req.Loss.Retry = a.RetryCount
	}
	if mask&ib.MaskRNRRetry != 0 {
		q.req.Loss.RNRRetry = a.RNRRetry
	}
}

// enter changes the state to s.
func (q *QP) enter(s ib.State, now ib.Time, h *Env) {
	c, r := &q.common, &q.req
	switch s {
	case ib.StateError:
		c.fail()
	case ib.StateSQD:
		r.Drained, r.Kick = r.Drained && c.State == ib.StateSQD, true
		c.State = ib.StateSQD
		if r.Pos == r.Started {
			r.Loaded = false // the request at Pos was fetched but not started
		}
		rc := q.reqCall(now, h)
		r.checkDrained(&rc)
	case ib.StateRTS:
		c.State = ib.StateRTS
		r.Kick = true
		r.restartTimer(c, now)
	default:
		c.State = s
	}
}
