// Package daemon composes a daemon: it makes the parts, connects them by interfaces, and ends them in order.
//
//	Options, file ── settings ──▶ launch.Claim ──▶ store ──▶ hostPort ──▶ engine ──▶ provisioner ──▶ server ──▶ control plane
//
//	daemon
//	├── storage      the store of declared objects: a file, or etcd
//	├── hostPort     RoCEv2 sockets in the host's network
//	├── between      VXLAN sockets and the tunnel of virtual networks       implements provision.Between
//	├── tunnelKey    this host's private key
//	├── plane        the control plane, from the moment it is open          implements provision.Placement
//	├── workloads    containers that NICs are bound to                      implements provision.Workloads, control.Workloads
//	├── cdiFiles     the NICs as CDI files for container engines
//	├── machines     sockets for virtual machines
//	└── measured     counters for the usage file and Prometheus             implements metrics.Source
//
// Each part owns its state and methods. Only this package knows all of them; package main parses flags and calls Run. Requests do
// not pass through this package: the server hands them to the control plane, which calls the provisioner.
package daemon
