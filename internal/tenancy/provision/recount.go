package provision

import (
	"bytes"
	"encoding/binary"
	"encoding/json"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// A NIC that is moved goes on counting where it was: the host that gives it up writes down what its device has counted, and the one that
// takes it adds that to what the device shows. What is metered, for bills, is each host's own.

// carried is what goes with a NIC: the times are a host's.
func carried(c nic.Counters) nic.Counters {
	c.LoopTime, c.Delays = 0, nic.Delays{}
	return c
}

// Counted implements control.Accountant.
func (r *Provisioner) Counted(k tenant.Key) string {
	s := r.find(k)
	if s == nil {
		return ""
	}
	var now nic.Counters
	if r.onLoop(func() { now = s.nic.Counters() }) != nil {
		return ""
	}
	c := carried(now)
	if c == (nic.Counters{}) {
		return ""
	}
	text, err := json.Marshal(c)
	if err != nil {
		return ""
	}
	return string(text)
}

// Recount implements control.Accountant. What it cannot read it leaves out: then the NIC counts from zero.
func (r *Provisioner) Recount(k tenant.Key, counted string, moved bool) {
	s := r.find(k)
	var then nic.Counters
	if s == nil || json.Unmarshal([]byte(counted), &then) != nil {
		return
	}
	r.onLoop(func() { // fails only after the loop has ended
		if s.nic.Before != nil && !moved {
			return // it has been here all the time
		}
		before := less(carried(then), carried(s.nic.Device.Counters()))
		s.nic.Before = &before
	})
}

// less is what c has more than o: all of it are numbers of eight bytes, which wrap around.
func less(c, o nic.Counters) (d nic.Counters) {
	order := binary.LittleEndian
	a, aerr := binary.Append(nil, order, c)
	b, berr := binary.Append(nil, order, o)
	if aerr != nil || berr != nil || len(a) != len(b) {
		return c
	}
	for i := 0; i+8 <= len(a); i += 8 {
		order.PutUint64(a[i:], order.Uint64(a[i:])-order.Uint64(b[i:]))
	}
	if binary.Read(bytes.NewReader(a), order, &d) != nil {
		return c
	}
	return d
}
