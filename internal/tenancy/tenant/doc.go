// Package tenant defines the objects that an operator declares: tenants, their networks, NICs and policies, and hosts
// that do not run vrdma.
//
//	Tenant ──┬── Network ── NIC      users, quotas and rates, network, address
//	         └── Policy ───────┘     which NICs may talk to which
//
// An object has Kubernetes' shape (apiVersion, kind, metadata, spec). A World is an immutable set of all objects.
// A Change puts and deletes objects. It is checked as a whole and results in the next World, or in an error that names
// the file, the line, the value and the remedy.
//
// The package is pure: no file, socket, clock or goroutine. Package store keeps a World. Package control changes it for
// authorized callers. Package provision creates the devices that it declares.
package tenant
