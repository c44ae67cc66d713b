// Package rxeguest describes a virtual machine with Debian's stock kernel and its rdma_rxe. vrdma is tested with it and compared
// with it on machines whose own kernel has no RDMA.
//
//	Image ── test/guest/image ── vmlinux, initramfs (busybox, rdma-core, perftest, agent)
//	Guest.Command ── qemu-system-x86_64, emulated: no KVM, no root, nothing installed
//
// The image is made once, in the user's cache directory. apt downloads the kernel's package but does not install it. The guest's
// init runs one program with a serial port as its argument: the agent of the tests, or another.
//
// test/guest and packages testbed and bench use it. It starts only the script that makes the image; the caller starts and stops
// the machine.
package rxeguest
