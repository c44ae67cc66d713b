// Package harness lets a test use vrdma as a user does. It builds the product, starts
// a daemon on a socket of its own, and runs unmodified programs under `vrdma run`. At the
// end it asks the operating system, not the product, whether anything is left.
//
//	test ── Start ──► daemon on TMP/vrdma.sock          (one a test, or shared
//	  │                   ▲                               by its subtests)
//	  ├── Run/Launch ──► vrdma run --socket … -- PROGRAM
//	  ├── Counters   ──► the device's counters: proof that RDMA carried it
//	  └── cleanup    ──► no session, no fd, no memfd mapping more than before
//
// Only the tests below test/ call it. It must never skip a test because a tool is missing
// (it installs the tool or fails), end a process that it did not start, or wait without a bound.
package harness
