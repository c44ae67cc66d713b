// Package ucma answers the kernel's rdma_cm commands: what librdmacm writes to
// /dev/infiniband/rdma_cm. It does what drivers/infiniband/core/ucma.c does around the
// calls of cma.c, which is package rdmacm here.
//
// Commands are rows of a table (table.go). A Channel stands for the client: the package
// knows no sockets and no processes.
package ucma
