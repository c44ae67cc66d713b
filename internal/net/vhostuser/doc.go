// Package vhostuser is a back end of the vhost-user protocol: it serves the virtqueues of a virtual machine's device in place of QEMU.
//
//	QEMU (front end) ── unix socket: requests with descriptors ──▶ Conn ── Memory: guest RAM, by guest-physical address
//	                                                                │
//	driver in the guest ── kick (eventfd) ──▶ Ring goroutine ──▶ Device.Kicked(Ring) ── Next, Put, Publish
//	driver in the guest ◀── call (eventfd) ──────────────────────────────────────────── Publish
//
// Serve talks to one front end until it disconnects. A Conn has the guest's memory (memory.go) and a Ring for every virtqueue
// (ring.go). The user of the package defines the device: its features, and what happens with a chain of buffers. Package vswitch
// implements network cards; other packages access the guest's memory through Conn.Memory.
//
// The package trusts neither the guest nor QEMU. A table checks the length and number of descriptors of every request (message.go).
// Every ring descriptor is read once, copied and checked for loops, lengths and addresses outside of RAM. An invalid ring is stopped,
// which affects only that guest. Memory whose file was truncated causes a panic at the access (debug.SetPanicOnFault); Conn.Owns
// tells whose memory it was.
//
// Reconnection: chains are used in the order in which they became available. So the used index in the guest's memory is all that the
// next back end needs. QEMU passes it with SET_VRING_BASE, and there is no other record of chains in flight. (QEMU's network devices
// request none.) The next back end processes chains again that were taken but not used.
//
// Migration: QEMU reads from a log which pages of the guest the rings have written (dirtylog.go). A device whose user writes to the
// guest's memory by other ways offers no log, and QEMU refuses to migrate.
//
// Protocol: docs/interop/vhost-user of QEMU. Virtqueues: virtio 1.1, section 2.6 (split). Not supported: packed rings, an IOMMU,
// postcopy.
//
// Locks: Conn.mu, then the Ring.mu of one ring. Device.Kicked runs without either. A caller that holds one ring with Begin may Begin
// another only of the other direction, always in the same order: package vswitch locks a sender's transmit ring, then a receiver's
// receive ring.
package vhostuser
