// Package kubelet speaks the kubelet's two protocols for devices.
//
// A Driver is of dynamic resource allocation (v1, v1beta1): the kubelet finds its socket, and has claims
// prepared and unprepared. It says which claim, so which NIC is decided at once.
//
// A Plugin is a device plugin (v1beta1): it registers a resource, tells which devices there are and whether
// they work, and answers Allocate with names of the Container Device Interface.
// There the kubelet is the client of everything but Register. Both sides may end at any time:
//
//	kubelet restarts    it removes every socket of its directory and makes its own anew;
//	                    we listen again and register again
//	we restart          the kubelet marks the devices unhealthy, keeps what it allocated, and takes
//	                    the new registration
//
// Allocate is told device names only, no pod. Which NIC a pod gets is therefore decided later, when
// its container starts: a device here is a slot, an empty place that a NIC moves into.
package kubelet
