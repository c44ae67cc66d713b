// Package memory tests the promise of registered memory: for a program, ibv_reg_mr and
// ibv_dereg_mr are atomic. Other threads, the kernel and other processes use the pages at
// that time, and no store, wake-up, message or byte of I/O is lost, duplicated or delivered
// elsewhere; no call fails that does not fail without vrdma.
//
//	testdata/*.c    programs of named cases (mem.h, and vt.h of test/testdata). A case moves
//	                bytes through RDMA and compares them with what plain loads see.
//	way             the user and the system calls that a program may use: root, an ordinary
//	                user, a container without userfaultfd, a program that nothing may trace
//	stress.c        everything at once, at random, against a checker
//
// Each case runs in a process of its own, against one daemon for each test. The long form
// (VRDMA_TEST_ALL=1) makes more rounds.
//
// internal/testkit/swapcheck tries every interleaving of a model of the same protocol.
package memory
