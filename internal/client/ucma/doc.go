// Package ucma executes the kernel's rdma_cm commands, which librdmacm writes to /dev/infiniband/rdma_cm. It corresponds to the
// kernel's ucma.c; package rdmacm corresponds to cma.c.
//
// Commands are rows of a table (table.go). A Channel stands for the client: the package knows neither sockets nor processes.
package ucma
