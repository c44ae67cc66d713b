// Package deviceplugin gives the pods of Kubernetes their NICs.
//
//	pod's namespace ── Tenant.spec.namespaces ──▶ tenant
//	vrdma.io/nic: NAME                        ──▶ that NIC of the tenant
//	vrdma.io/network: NAME, or the only one   ──▶ a NIC made for the pod, with its labels
//
// A list that only the operator writes decides the tenant. The pod decides everything inside the tenant. A NIC that is
// made for a pod has the pod's labels, so that policies can select it, and is deleted with the pod.
//
// The kubelet allocates before it names the pod. So it allocates a slot: a name in a directory that the container
// engine mounts (a CDI file with one device for each slot). Before the container starts the kubelet calls the plugin
// again, and only then the slot becomes a link to the directory of the pod's NIC. All containers of a pod share one
// NIC, as they share one network.
//
//	PATH.pods/0 ─▶ PATH.nics/red/web      mounted into the container, as any NIC's directory
//	PATH.pods/1                           does not exist: the slot is free
package deviceplugin
