// Package cni is a plugin of the Container Network Interface
// (https://github.com/containernetworking/cni/blob/main/SPEC.md, versions 0.3.0 to 1.1.0). An engine runs it as
//
//	CNI_COMMAND=ADD CNI_CONTAINERID=… CNI_NETNS=/run/netns/… CNI_IFNAME=eth0 vrdma-cni <configuration >result
//
// once for each container that comes or goes. Chained after another plugin it has the daemon bind a NIC to the
// container's network namespace: from then on no other workload has it. The mounts by which programs find the NIC are CDI's
// part, or the runtime's: a plugin cannot mount.
//
//	{"type": "vrdma-cni", "nic": "red.web", "socket": "/var/lib/vrdma/vrdma.sock"}
//
// By itself it has the daemon make the interface that has the NIC's address, too.
//
// Results are those of containernetworking/cni's package types. Two parts of CNI are not taken from there. A previous
// result is passed on as the JSON that it was: fields that this version does not know survive. An error has the
// configuration's version beside its code, which types.Error lacks.
//
// Engines repeat calls, lose them and make them at the same time. So nothing is kept here: the daemon has the
// bindings, to bind or unbind again changes nothing, and a binding whose namespace is gone does not count.
package cni
