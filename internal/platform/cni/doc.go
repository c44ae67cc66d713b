// Package cni implements a plugin of the Container Network Interface
// (https://github.com/containernetworking/cni/blob/main/SPEC.md, versions 0.3.0 to 1.1.0). An engine runs it as
//
//	CNI_COMMAND=ADD CNI_CONTAINERID=… CNI_NETNS=/run/netns/… CNI_IFNAME=eth0 vrdma-cni <configuration >result
//
// once for each container that starts or ends. Chained after another plugin it binds a NIC to the container's network
// namespace: from then on no other workload gets the NIC. CDI or the OCI runtime makes the mounts: a plugin cannot mount.
//
//	{"type": "vrdma-cni", "nic": "red.web", "socket": "/var/lib/vrdma/vrdma.sock"}
//
// Alone, without a previous plugin, it also makes the daemon create the interface with the NIC's address.
//
// Results are those of containernetworking/cni's package types. Two parts of CNI are not taken from there. A previous
// result is passed on as the JSON that it was: fields that this version does not know survive. An error has the
// configuration's version beside its code, which types.Error lacks.
//
// Engines repeat calls, lose them and make them concurrently. The plugin therefore keeps no state: the daemon has the
// bindings, repeated binding or unbinding changes nothing, and a binding whose namespace is gone does not count.
package cni
