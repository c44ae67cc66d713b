// Package verbs is RDMA for Go programs, without cgo and without a C library: a static binary in an
// empty container gets an RDMA device. The device is vrdma's daemon, or the Linux kernel's rxe, whose
// queues look the same.
//
//	program ── PostSend, PostRecv ──▶ rings in shared memory ──▶ daemon
//	        ◀── Poll, Wait ────────── completion rings ◀────────
//
// What is made is closed again, children before parents. A Device has protection domains; those have
// memory and queue pairs; a completion queue tells what has been done:
//
//	dev, err := verbs.Open(ctx)
//	pd, err := dev.AllocPD()
//	cq, err := dev.CreateCQ(128)
//	qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq})
//	mr, err := pd.Alloc(1<<20, verbs.RemoteAll)
//
// Memory comes from PD.Alloc. It lies outside of Go's heap, so nothing of Go's is ever remapped or
// pinned, and it is sliced and reused freely.
//
// Posting and polling make no system call while the device is awake, and never allocate. CQ.Wait
// sleeps through the runtime's network poller: a goroutine waits, no thread does.
//
// Errors are of type *Error and wrap a syscall.Errno or a Status. Package verbs/cm connects as
// librdmacm does; package verbs/stream has net.Conn.
//
// Nothing here may be imported but the standard library, golang.org/x/sys and the packages that only
// describe layouts (abi, protocol).
package verbs
