// Package tenant is what an operator declares: tenants, their networks, NICs and policies, and hosts
// that do not run vrdma.
//
//	Tenant ──┬── Network ── NIC      who may use how much, in which network, at which address
//	         └── Policy ───────┘     which NICs may talk to which
//
// An object has Kubernetes' shape (apiVersion, kind, metadata, spec). A World is all objects at
// one moment. It is not changed: a Change of it (objects put, objects deleted) is checked as a
// whole and makes the next one, or an error that says what is wrong, where, and what to do.
//
// The package is pure: no file, socket, clock or goroutine. Package store keeps a world, package
// control changes it on behalf of those who may, package rack makes it so.
package tenant
