// Package deviceplugin gives the pods of Kubernetes their NICs.
//
//	pod's namespace ── Tenant.spec.namespaces ──▶ tenant
//	vrdma.io/nic: NAME                        ──▶ that NIC of the tenant
//	vrdma.io/network: NAME, or the only one   ──▶ a NIC made for the pod, with its labels
//
// The tenant is decided by a list that only the operator writes, everything inside it by the pod. A NIC that
// is made has the pod's labels, so that policies select it by them, and goes with the pod.
//
// The kubelet allocates before it says for which pod. What it allocates is therefore a slot: a name in a
// directory that the container engine is told to mount (a CDI file with one device for each slot). Before the
// container starts the kubelet tells that it will, and only then the slot becomes a link to the
// directory of the pod's NIC. All containers of a pod have one NIC, as they have one network.
//
//	PATH.pods/0 ─▶ PATH.nics/red/web      mounted into the container, as any NIC's directory
//	PATH.pods/1                           not there: nobody has the slot
package deviceplugin
