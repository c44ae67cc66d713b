// Package harness lets a test be a user of vrdma: it builds the product, starts
// a daemon on a socket of its own, runs unmodified programs under `vrdma run`,
// and at the end asks the operating system, not the product, whether anything
// was left behind.
//
//	test ── Start ──► daemon on TMP/vrdma.sock          (one a test, or shared
//	  │                   ▲                               by its subtests)
//	  ├── Run/Launch ──► vrdma run --socket … -- PROGRAM
//	  ├── Counters   ──► the device's counters: proof that RDMA carried it
//	  └── cleanup    ──► no session, no fd, no memfd mapping more than before
//
// Who calls it: the tests in vrdma.dev/vrdma/test, nobody else. What it must never do:
// skip because a tool is missing (it installs it or fails), end a process that
// it did not start, or wait without a bound.
package harness
