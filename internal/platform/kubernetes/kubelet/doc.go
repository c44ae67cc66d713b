// Package kubelet speaks the kubelet's two protocols for devices.
//
// A Driver uses dynamic resource allocation (v1, v1beta1): the kubelet finds its socket, and calls it to prepare and
// unprepare claims. The call names the claim, so that the NIC is chosen at once.
//
// A Plugin is a device plugin (v1beta1): it registers a resource, reports its devices and their health, and answers
// Allocate with names of the Container Device Interface. The kubelet is the client of everything but Register. Both
// sides may end at any time:
//
//	kubelet restarts    it removes every socket of its directory and makes its own again;
//	                    the plugin listens and registers again
//	plugin restarts     the kubelet marks the devices unhealthy, keeps what it allocated, and accepts
//	                    the new registration
//
// Allocate gets device names only, no pod. So the NIC of a pod is chosen later, when its container starts: a device
// here is a slot, a name that is later linked to a NIC.
package kubelet
