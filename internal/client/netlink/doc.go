// Package netlink answers RDMA netlink: what a program asks the kernel over a socket of
// NETLINK_RDMA. libibverbs and librdmacm find devices that way, and `rdma` of iproute2 shows
// them:
//
//	program ── datagram ──► Answer ── asks ──► Source   (the server: what the
//	        ◄─ datagrams ──                              program's user may see)
//
// A datagram holds messages; each is a request for one thing (a "doit" in the kernel's words)
// or for all of a kind (a dump), with attributes. Commands are rows of a table (answer.go);
// which attributes an object shows is a table too (resources.go). The answers are those of
// drivers/infiniband/core/nldev.c to a process without CAP_NET_ADMIN: keys of memory are not
// shown. What would change the device is refused.
//
// The package is pure: no socket, no clock, no goroutine. It never trusts a request: every
// length is checked against the bytes that came, and no answer is longer than what every
// reader has room for.
package netlink
