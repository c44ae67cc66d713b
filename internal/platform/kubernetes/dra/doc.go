// Package dra gives NICs to pods that use dynamic resource allocation: the pod has a ResourceClaim, and the claim names
// the NIC.
//
//	claim's namespace ── Tenant.spec.namespaces ──▶ tenant; the claim may name it, and no other
//	parameters: nic                             ──▶ that NIC of the tenant
//	parameters: network, address, rate, limits  ──▶ a NIC made for the claim, with the pod's labels
//
// The scheduler allocates a slot of this host: a device of a ResourceSlice. When the kubelet prepares the claim, the
// slot becomes a link to the directory of the NIC, as in package deviceplugin:
//
//	PATH.claims/nic-7        ─▶ PATH.nics/red/…   mounted into the pod's containers
//	PATH.claims/UID.json     the claim's record: written before its NIC is made, and removed after the NIC is gone
//
// The kubelet may repeat any call, so preparing and unpreparing are idempotent. A claim can be unprepared without the
// daemon: its record is marked, and the NIC is deleted when the daemon answers.
package dra
