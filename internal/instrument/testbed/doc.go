// Package testbed makes the environments that programs are measured in, starts the programs and reads what the kernel and
// the daemons count.
//
//	Lab                       a private directory with a copy of the product
//	 └─ Environments          one Environment for each setting, MTU, rate and delay; kept until Close
//	     ├─ one host          Lab.Here and its Daemon
//	     ├─ HostPair          two network namespaces, a veth pair, a Daemon in each
//	     ├─ Containers        of podman, Docker or LXC (engines.go), or namespaces in their place
//	     ├─ VMs               QEMU guests on one host or on two, with vhost-user and tap cards, or Open vSwitch (OVS)
//	     ├─ rxe guest         a QEMU guest whose kernel has rxe; it measures by itself
//	     └─ remote            another machine, over ssh
//
// A tool runs on a Route, from the Host of the client to the Host of the server. A Launcher says how it starts there: without
// vrdma, with the device, through rdma_cm, or over --sockets. Programs on other machines and in guests are started by an
// Agent: one JSON line for each request, answered by ServeAgent at the other end.
//
// programs/ has the C programs for what no tool measures: a cold memcpy, a ring in shared memory, idle queue pairs, a
// hostile tenant.
//
// Packages drivers, measure and bench call it. It knows no tool and no table, and leaves no process, namespace, control group,
// container or virtual machine behind.
package testbed
