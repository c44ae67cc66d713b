// Package vhostuser is the back end of the vhost-user protocol: a virtual machine's device whose
// virtqueues are served here and not in QEMU.
//
//	QEMU (front end) ── unix socket: requests with descriptors ──▶ Conn ── Memory: guest RAM, by guest-physical address
//	                                                                │
//	driver in the guest ── kick (eventfd) ──▶ Ring goroutine ──▶ Device.Kicked(Ring) ── Next, Put, Publish
//	driver in the guest ◀── call (eventfd) ──────────────────────────────────────────── Publish
//
// Serve speaks with one front end until it has gone. A Conn has the guest's memory (memory.go) and a
// Ring for every virtqueue (ring.go). What the device is (which features, what to do with a chain of
// buffers) is its user's: package vswitch makes network cards of it, others may reach the guest's
// memory through Conn.Memory.
//
// Nothing that comes from the guest or from QEMU is trusted. Every request has its length and number
// of descriptors checked by a table (message.go). Every descriptor of a ring is read once, copied and
// checked: chains that loop, lengths, addresses outside of RAM. A ring that breaks the rules is
// stopped, which harms only that guest. Memory that cannot be read, because its file was made
// shorter, makes a panic in whoever touches it (debug.SetPanicOnFault); Conn.Owns says whose it was.
//
// Reconnection. Chains are used in the order in which they were made available. So the used index,
// which is in the guest's memory, says all that the next back end has to know: QEMU hands it over by
// SET_VRING_BASE, and there is no other record of what is in flight. (QEMU's network devices ask
// for none.) What was taken and not yet used when a back end died is done again by the next one.
//
// The protocol: docs/interop/vhost-user of QEMU. Virtqueues: virtio 1.1, section 2.6 (split). Not
// done: packed rings, dirty logs (so QEMU refuses to migrate), an IOMMU, postcopy.
//
// Locks: Conn.mu, then Ring.mu; one Ring's only. Device.Kicked runs without either. Somebody who
// holds one ring with Begin may Begin another only if that one is of the other direction, and never
// the other way round: package vswitch holds a sender's transmit ring, then a receiver's receive ring.
package vhostuser
