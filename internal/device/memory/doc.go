// Package memory is registered memory: bytes of other processes that the NIC
// reads and writes.
//
//	application                      daemon
//	  buffer at va ──┐         ┌── window: 1 GiB of the same file
//	                 ▼         ▼
//	        memfd of the process, file offset = va
//
// A Space is one client. Its shared memory lies in a Backing: for a process a memfd that
// the daemon makes, 2^47 bytes long, sparse and sealed. The shim maps its pages in place of
// the application's, the daemon maps them in windows that all regions of the process share,
// because a process may have only so many mappings. When the last region over a page is
// released, and the process has been told, the shim makes the page private again and takes
// it out of the file: pages of the file that no region covers are gone at any moment.
//
// A Region is what one REG_MR covers: a list of extents of three kinds.
//
//   - Own: an offset in the backing.
//   - Shared: memory that the client shares with others (POSIX and System V shared memory,
//     memfds, files of tmpfs and hugetlbfs, shared anonymous memory). Mappings finds the file,
//     and the daemon maps it too. Nothing is replaced.
//   - Foreign: anything else. It is reached through /proc/PID/mem, by the threads of a Pool.
//
// Nothing above this package knows
// addresses of the daemon; it asks a Region for a Span and copies between Spans.
//
// The NIC's loop is the only user of a Region's bytes, and drops the Region before
// it calls Release, so unmapping needs no further care. What this package must
// never do is trust a number that came from a client.
package memory
