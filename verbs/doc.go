// Package verbs gives Go programs RDMA without cgo and without a C library. A static binary in an empty
// container can use it. The device is the vrdma daemon, or the Linux kernel's rxe: both have the same
// queue layout.
//
//	program ── PostSend, PostRecv ──▶ rings in shared memory ──▶ daemon
//	        ◀── Poll, Wait ────────── completion rings ◀────────
//
// The program closes every object that it creates, children before parents. A Device has protection
// domains. A protection domain has memory regions and queue pairs. A completion queue reports finished
// work requests:
//
//	dev, err := verbs.Open(ctx)
//	pd, err := dev.AllocPD()
//	cq, err := dev.CreateCQ(128)
//	qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq})
//	mr, err := pd.Alloc(1<<20, verbs.RemoteAll)
//
// PD.Alloc allocates registered memory outside of Go's heap. The garbage collector never moves or frees
// it, and the program can slice and reuse it freely.
//
// Posting and polling never allocate, and make no system call while the daemon is awake. CQ.Wait sleeps
// in the runtime's network poller: it blocks a goroutine, not a thread.
//
// Errors have type *Error and wrap a syscall.Errno or a Status. Package verbs/cm connects queue pairs as
// librdmacm does; package verbs/stream implements net.Conn.
//
// The package imports only the standard library, golang.org/x/sys and the packages that describe memory
// layouts (abi, protocol).
package verbs
