// Package filecopy copies files between hosts over RDMA: what `vrdma cp` does.
//
//	client                                     server (--serve, or started through ssh)
//	  control connection ── messages ────────── control connection
//	  stream 1 ── chunk, chunk, … ────────────▶ stream 1      four streams, each a connection
//	  stream n ◀── credits ──────────────────── stream n
//
// A session has one control connection and some streams. One side sends files and the other receives
// them; which is which the client says. A conn is what both kinds are: RDMA (rdma.go) or TCP (tcp.go).
//
// The sender offers a file (message file). The receiver opens a partial file beside the target, tells
// what it has of it from an earlier attempt (message have) and accepts. Then any stream carries any
// chunk of it: the sender reads the file straight into registered memory, and writes it with RDMA
// WRITE_WITH_IMM into a slot of the receiver's memory. The immediate is the slot's number. The receiver
// checks the chunk, writes it to the partial file and gives the slot back: a credit. The sender never
// writes into a slot that it has no credit for. So reading, sending, checking and writing overlap, and
// the published protocol, which has one chunk under way (onechunk.go), shows what that is worth.
//
// Sums: every block of 128 KiB has a CRC-32C, which is in the header of its chunk and is checked before
// the block is written. It is computed at more than 10 GB/s a processor, where SHA-256 would need half
// the time of the whole copy. At the end the sender tells the SHA-256 of the table of all sums, so that
// no block is missing, doubled or in another's place. Then the partial file gets its name.
//
// Who talks to us is hostile until it has shown that it knows the key (auth.go), and after that may
// still be mistaken or malicious: every length is checked (message.go, chunk.go), every path is resolved
// below the directory that was named (tree.go), and memory is made only for what has come.
//
// Broken connections: the partial file stays, and the next attempt, of the same command or of another,
// compares it block by block (resume.go). Whatever else goes wrong removes it.
package filecopy
