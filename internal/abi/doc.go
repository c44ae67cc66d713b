// Package abi defines the kernel's InfiniBand ABI as data: the numbers and struct layouts that libibverbs and the stock rxe
// provider exchange with the kernel.
//
//	application ── write(fd, cmd) ──▶ CmdHeader [ExCmdHeader] request [driver data]
//	            ◀── stores ───────── response [driver data]
//	            ── mmap'd rings ──── QueueBuf, SendWQE, RecvWQE, WC
//
// It mirrors <rdma/ib_user_verbs.h>, <rdma/rdma_user_rxe.h> and <rdma/rdma_user_cm.h>.
// Every struct's comment and every field's tag keep the kernel's spelling, so that grep works
// across the kernel, rdma-core and this repository; a test compiles the headers
// and compares every size and offset with the tags.
//
// Packages uverbs and ucma (commands and responses), nic (rings) and ib (numbers) use it. The package has only layouts: no policy,
// no checks beyond length, no state. Decode and Encode copy; nothing here aliases memory that a client can still write to.
package abi
