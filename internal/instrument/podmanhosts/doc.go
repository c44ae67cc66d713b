// Package podmanhosts makes two hosts on this machine between which podman moves running containers: two sets of namespaces with a
// wire between them, a vrdma daemon in each, and an etcd that the two share.
//
//	this machine
//	├── node-a: mount, network, pid and ipc namespaces; its root is an overlay
//	│   ├── etcd (network namespace only)
//	│   ├── vrdma daemon, /run/vrdma
//	│   └── podman, crun, CRIU with vrdma's plugin: containers
//	└── node-b: the same without etcd
//
// The root is an overlay of this machine's files if the machine has podman and CRIU 4. Otherwise it is an overlay of what
// tools/container-image and tools/criu-image have unpacked into the user's cache. All that a host writes is in memory. Close ends every
// process and removes the control groups, also those that CRIU has frozen.
//
// Packages demo and bench use it. It needs root.
package podmanhosts
