// Package dra gives NICs to pods that ask for them by dynamic resource allocation: the pod has a ResourceClaim, and
// the claim says which NIC.
//
//	claim's namespace ── Tenant.spec.namespaces ──▶ tenant; the claim may name it, and no other
//	parameters: nic                             ──▶ that NIC of the tenant
//	parameters: network, address, rate, limits  ──▶ a NIC made for the claim, with the pod's labels
//
// What the scheduler allocates is a slot of this host: a name in a ResourceSlice, as in package deviceplugin a name in a list.
// When the kubelet has the claim prepared, the slot becomes a link to the directory of the NIC:
//
//	PATH.claims/nic-7        ─▶ PATH.nics/red/…   mounted into the pod's containers
//	PATH.claims/UID.json     what was made for the claim: written before it is made, and removed after it is gone
//
// The kubelet asks again whenever it is not sure, so both directions do no harm twice. A claim is taken back without
// the daemon, too: its record says that it is gone, and the NIC goes when the daemon answers.
package dra
