package provision

import (
	"bytes"
	"encoding/binary"
	"encoding/json"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// A NIC that moves to another host keeps its counters. The old host stores what its device has counted, and the new
// host adds that to the device's counters. Usage for bills is counted on each host by itself.

// carried removes the times, which belong to a host, from counters.
func carried(c nic.Counters) nic.Counters {
	c.LoopTime, c.Delays = 0, nic.Delays{}
	return c
}

// Counted implements control.CounterKeeper.
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

// Recount implements control.CounterKeeper. If it cannot read the text, the NIC counts from zero.
func (r *Provisioner) Recount(k tenant.Key, counted string, moved bool) {
	s := r.find(k)
	var then nic.Counters
	if s == nil || json.Unmarshal([]byte(counted), &then) != nil {
		return
	}
	r.onLoop(func() { // fails only after the loop has ended
		if s.nic.Before != nil && !moved {
			return // the NIC has not left this host
		}
		before := less(carried(then), carried(s.nic.Device.Counters()))
		s.nic.Before = &before
	})
}

// less is c minus o. All fields are numbers of eight bytes, which wrap around.
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
