// Package rxeguest describes a virtual machine with Debian's stock kernel and its
// rdma_rxe: what vrdma has to understand, and what it is measured against, on a machine
// whose own kernel has no RDMA.
//
//	Image ── test/guest/image ── vmlinux, initramfs (busybox, rdma-core, perftest, agent)
//	Machine.Command ── qemu-system-x86_64, emulated: no KVM, no root, nothing installed
//
// The image is made once, in the user's cache directory; the kernel's package comes
// through apt and is never installed. The guest's init runs one program, with the device
// of a serial line as its argument: the agent that the tests talk to, or another.
//
// Who uses it: vrdma.dev/vrdma/test/guest and vrdma.dev/vrdma/internal/instrument/bench. It starts nothing but what makes
// the image; whoever starts the machine ends it.
package rxeguest
