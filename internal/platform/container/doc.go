// Package container gives containers a NIC: two mounts, and nothing else.
//
//	on the host                              in the container, read-only
//	NIC's directory                     ──▶  /run/vrdma/          socket, shared object, device tree
//	NIC's directory/…/ld.so.preload     ──▶  /etc/ld.so.preload   one line, which names the shared object
//
// The line makes the dynamic linker load the shared object into every program, also setuid ones.
// The shared object finds the socket beside itself, without a variable. The directory outlives
// the daemon, so that a container finds the next daemon there.
//
// The mounts have three forms: arguments and configuration lines for engines (Args), which
// `vrdma nic args` prints; files of the Container Device Interface (Spec), which the daemon keeps in
// a directory that engines read (Keeper) and `vrdma cdi` prints; and the configuration of a container
// that an OCI runtime is about to create (Bundle), which `vrdma oci-runtime` changes.
//
// The last two also have hooks (Hooks): programs that the runtime runs while it creates the container. One of
// them merges the NIC's ld.so.preload with the image's (Merge).
//
// The package contacts neither a daemon nor an engine.
package container
