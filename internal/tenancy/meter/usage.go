package meter

import (
	"fmt"
	"time"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/transport"
)

// A Column is one quantity.
type Column int

const (
	TransmitBytes Column = iota
	ReceiveBytes
	TransmitPackets
	ReceivePackets
	Retransmitted // packets sent again
	Connections   // queue pairs that got a peer
	LoopTime      // of the daemon's loop, in nanoseconds
	MemoryTime    // registered bytes times seconds
	ThrottledOut  // nanoseconds in which it had data to send and was over a cap
	ThrottledIn   // nanoseconds in which others had data for it and it was over a cap

	// Ethernet frames of virtual machines and containers, which the columns above do not include.
	FramesOut
	FramesIn
	FrameBytesOut
	FrameBytesIn
	FrameTime // of the daemon, in nanoseconds

	sent    // messages by operation
	rcvd    = sent + Column(transport.NumOps)
	drops   = rcvd + Column(transport.NumOps)
	denials = drops + Column(nic.NumReasons)

	NumColumns = denials + Column(nic.NumRefusals)
)

// Sent and Rcvd are messages, Drops packets, Refusals refused requests.
func Sent(o transport.Op) Column     { return sent + Column(o) }
func Rcvd(o transport.Op) Column     { return rcvd + Column(o) }
func Drops(r nic.Reason) Column      { return drops + Column(r) }
func Refusals(d nic.Refusal) Column  { return denials + Column(d) }
func (c Column) String() string      { return names[c] }
func columnNamed(name string) Column { return byName[name] - 1 }

// names are the names of columns in files and in JSON. A file names its columns, so a column may be added anywhere, but
// must keep its name.
var names = func() (n [NumColumns]string) {
	n = [NumColumns]string{
		TransmitBytes: "transmit_bytes", ReceiveBytes: "receive_bytes",
		TransmitPackets: "transmit_packets", ReceivePackets: "receive_packets",
		Retransmitted: "retransmitted_packets", Connections: "connections",
		LoopTime: "loop_ns", MemoryTime: "memory_byte_seconds",
		ThrottledOut: "throttled_out_ns", ThrottledIn: "throttled_in_ns",
		FramesOut: "ethernet_transmit_frames", FramesIn: "ethernet_receive_frames",
		FrameBytesOut: "ethernet_transmit_bytes", FrameBytesIn: "ethernet_receive_bytes",
		FrameTime: "ethernet_ns",
	}
	for o := range transport.NumOps {
		n[Sent(o)], n[Rcvd(o)] = "sent_"+o.String(), "received_"+o.String()
	}
	for r := range nic.NumReasons {
		n[Drops(r)] = "dropped_" + r.String()
	}
	for d := range nic.NumRefusals {
		n[Refusals(d)] = "denied_" + d.String()
	}
	return n
}()

// byName is the column of a name plus one; 0: there is none.
var byName = func() map[string]Column {
	m := make(map[string]Column, NumColumns)
	for i, n := range names {
		if n == "" || m[n] != 0 {
			panic(fmt.Sprintf("meter: column %d is called %q", i, n))
		}
		m[n] = Column(i) + 1
	}
	return m
}()

// Columns are the names of all columns, in order.
func Columns() []string { return names[:] }

// Usage has a value for each column.
type Usage [NumColumns]uint64

// Of converts a NIC's counters.
func Of(c *nic.Counters) Usage {
	u := Usage{
		TransmitBytes: c.SentBytes, ReceiveBytes: c.RcvdBytes, TransmitPackets: c.SentPackets, ReceivePackets: c.RcvdPackets,
		Retransmitted: c.Retransmitted, Connections: c.Connected, LoopTime: uint64(c.LoopTime),
	}
	copy(u[sent:], c.SentMessages[:])
	copy(u[rcvd:], c.RcvdMessages[:])
	copy(u[drops:], c.Drops[:])
	copy(u[denials:], c.Refusals[:])
	return u
}

// add sums o into u.
func (u *Usage) add(o *Usage) {
	for i := range o {
		u[i] += o[i]
	}
}

// since is u minus o. A column that fell counts as zero.
func (u *Usage) since(o *Usage) (d Usage) {
	for i := range u {
		if u[i] > o[i] {
			d[i] = u[i] - o[i]
		}
	}
	return d
}

// MarshalJSON writes the columns that are not zero, by name.
func (u Usage) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for i, v := range u {
		if v != 0 {
			if len(b) > 1 {
				b = append(b, ',')
			}
			b = fmt.Appendf(b, "%q:%d", names[i], v)
		}
	}
	return append(b, '}'), nil
}

// A Key identifies usage. NIC is empty for usage that is known by tenant only.
type Key struct{ Tenant, Network, NIC string }

// System is the tenant of packets that were dropped before their NIC was known. No tenant can have this name.
const System = "_system"

// defaultTenant is the tenant of the default NIC.
const defaultTenant = "default"

// A Record is the usage in a period.
type Record struct {
	Key
	From, To time.Time
	Usage    Usage
}

// A Total is the usage since the meter began, and the current state.
type Total struct {
	Key
	Usage Usage
	Now   nic.Holdings // zero if the NIC is gone
	Live  bool
	// Delays are those of the current or last NIC, since it was created.
	Delays nic.Delays
	At     time.Time // when it was read, on the loop; zero: by an earlier daemon
}
