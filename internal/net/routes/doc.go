// Package routes asks the kernel how it would reach another host: from which address
// (From), and whether the next station on the way answers (Reach). It is what rdma_cm's
// resolving of addresses rests on. It needs no rights and changes nothing but the
// kernel's neighbour table, as any datagram does.
package routes
