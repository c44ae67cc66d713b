// Package routes asks the kernel how it reaches another host: with which source address (From), and whether the next hop
// answers (Reach). rdma_cm's address resolution uses it. It needs no privileges and changes only the kernel's neighbour
// table, as any datagram does.
package routes
