package crc

import "golang.org/x/sys/cpu"

var (
	// wide: the processor and the kernel have what fold needs.
	wide = cpu.X86.HasAVX512F && cpu.X86.HasAVX512VPCLMULQDQ
	// half: they have what foldHalf needs, and nothing wider.
	half = !wide && cpu.X86.HasAVX2 && hasVPCLMULQDQ()
)

// fold takes a CRC's state on over data with registers of 64 bytes. The length is a multiple of 256, and not 0.
//
//go:noescape
func fold(f *folds, state uint32, data []byte) uint32

// foldCopy does so with src, and copies it to dst, which is as long.
//
//go:noescape
func foldCopy(f *folds, state uint32, dst, src []byte) uint32

// foldHalf is fold with registers of 32 bytes. The length is a multiple of 16, and 128 at least.
//
//go:noescape
func foldHalf(f *folds, state uint32, data []byte) uint32

// foldCopyHalf does so with src, and copies it to dst, which is as long. The length is a multiple of 128, and not 0.
//
//go:noescape
func foldCopyHalf(f *folds, state uint32, dst, src []byte) uint32

// hasVPCLMULQDQ asks the processor. (Package cpu knows of it only together with AVX-512.)
func hasVPCLMULQDQ() bool
