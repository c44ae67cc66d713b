// Package filecopy copies files between hosts over RDMA: what `vrdma cp` does.
//
//	client                                     server (--serve, or started through ssh)
//	  control connection ── messages ────────── control connection
//	  stream 1 ── chunk, chunk, … ────────────▶ stream 1      four streams, each a connection
//	  stream n ◀── credits ──────────────────── stream n
//
// A session has a control connection and several streams. One side sends files, the other receives them; the client decides which.
// Both kinds of connections are a conn: RDMA (rdma.go) or TCP (tcp.go).
//
// The sender offers a file (message file). The receiver opens a partial file beside the target, sends the checksums that it has
// from an earlier attempt (message have) and accepts. Then any stream may carry any chunk of it. The sender reads the file into
// registered memory and writes it with RDMA WRITE_WITH_IMM into a slot of the receiver's memory; the immediate is the number of
// the slot. The receiver checks the chunk, writes it to the partial file and returns the slot as a credit. The sender never
// writes into a slot without a credit. So reading, sending, checking and writing overlap, unlike in the published protocol with
// one chunk in flight (onechunk.go).
//
// Checksums: every block of 128 KiB has a CRC-32C in the header of its chunk, which is checked before the block is written. A
// SHA-256 of all data would take half the time of the copy. At the end the sender sends the SHA-256 of the table of all CRCs, so
// that no block is missing, duplicated or misplaced. Then the partial file gets its name.
//
// A peer is hostile until it has proved that it knows the key (auth.go), and may be faulty or malicious afterwards. Every length
// is checked (message.go, chunk.go), every path is resolved below the named directory (tree.go), and memory is allocated only for
// data that has arrived.
//
// After a broken connection the partial file stays. The next attempt, of the same command or another, compares it block by block
// (resume.go). Any other error removes it.
package filecopy
