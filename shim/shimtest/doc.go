// Package shimtest tests libvrdma.so, the C library in the directory above. (Go does
// not allow tests beside C files that cgo does not build.)
//
//	test program (testdata/*.c) ── libvrdma.so ── unix socket ── fake (fake_test.go)
//
// The library is built from source by the tests themselves, with the flags of
// shim.mk, and the programs of testdata run under it against a fake daemon that
// speaks the protocol and knows a few commands of its own: echo, fail, be slow, look
// into registered memory, die. What RDMA means is not tested here.
package shimtest
