// Package guest boots a virtual machine with Debian's stock kernel and its rdma_rxe, so
// that tests can hold vrdma against the implementation it has to understand.
//
//	test process                                     QEMU (emulated, no KVM needed)
//	  │                                                ├─ eth0 ─ rxe0
//	  ├─ cable ── unix datagrams: Ethernet frames ─────┘
//	  │    └── TAP in a namespace ── vrdma daemon
//	  └─ talk ─── unix stream: virtio serial line ───── agent ── ibv_rc_pingpong …
//
// The script image makes kernel and initramfs, once, in the user's cache directory; the
// kernel's package comes through apt and is never installed. A guest is ready within
// seconds; one of them serves many tests. Its network is a cable of package cable, so a
// test may lose packets on the way without loading anything into any kernel.
//
// Who uses it: the tests beside it. What it must never do: leave a QEMU process, a socket
// or a temporary file behind, however the test ends.
package guest
