// Package container is how containers get a NIC: two mounts, and nothing else.
//
//	on the host                              in the container, read-only
//	NIC's directory                     ──▶  /run/vrdma/          socket, shared object, device tree
//	NIC's directory/…/ld.so.preload     ──▶  /etc/ld.so.preload   one line, which names the shared object
//
// The line has the dynamic linker load the shared object into every program, setuid ones
// included, and the shared object finds the socket beside itself: no variable is needed. The
// directory stays over a restart of the daemon, so that a container finds the next one there.
//
// The mounts are spelled in three ways: as arguments and lines of configuration for engines (Args),
// which `vrdma nic args` prints; as files of the Container Device Interface (Spec), which the
// daemon keeps in a directory that engines read (Keeper) and `vrdma cdi` prints; and in the
// configuration of a container that an OCI runtime is about to make (Bundle), which `vrdma oci-runtime` changes.
//
// The last two have hooks beside the mounts (Hooks): programs that the runtime runs meanwhile. One of them
// makes one file of the NIC's ld.so.preload and the image's (Merge).
//
// Nothing in here talks to a daemon or to an engine.
package container
