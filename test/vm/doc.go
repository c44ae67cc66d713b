// Package vm tests verbs in virtual machines: stock programs of rdma-core and perftest in stock
// guests, which have nothing of ours but `vrdma guest agent`.
//
//	test ── talk ── guest A: agent, ibv_rc_pingpong … ── QEMU ══ the daemon ══ QEMU ── guest B
//	                                                                ║
//	                                                     programs on the host
//
// The guests are those of package guest, emulated, with one more network card and two more ports.
// Programs of two guests find each other by rdma_cm, so there is no other network between them.
package vm
