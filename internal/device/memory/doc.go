// Package memory is registered memory: bytes of other processes that the NIC
// reads and writes.
//
//	application                      daemon
//	  buffer at va ──┐         ┌── window: 1 GiB of the same file
//	                 ▼         ▼
//	        memfd of the process, file offset = va
//
// A Space is one client. Its shared memory lies in a Backing: for a process a memfd that
// the daemon makes, 2^47 bytes long, sparse and sealed. The shim maps pages of the memfd in
// place of the application's. The daemon maps them in windows that all regions of the process
// share, because the kernel limits the number of mappings. After the last region over a page is
// released, the shim makes the page private again and takes it out of the file. So a page that
// no region covers may be missing at any moment.
//
// A Region is what one REG_MR covers: a list of extents of three kinds.
//
//   - Own: an offset in the backing.
//   - Shared: memory that the client shares with others (POSIX and System V shared memory,
//     memfds, files of tmpfs and hugetlbfs, shared anonymous memory). Mappings finds the file,
//     and the daemon maps it too. Nothing is replaced.
//   - Foreign: anything else. It is reached through /proc/PID/mem, by the threads of a Pool.
//
// Other packages know no addresses in the daemon: they ask a Region for a Span and copy between
// Spans.
//
// Only the NIC's loop uses a Region's bytes. It drops the Region before it calls Release, so
// unmapping needs no lock. This package must never trust a number that came from a client.
package memory
