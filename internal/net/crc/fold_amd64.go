package crc

import "golang.org/x/sys/cpu"

var (
	// wide means that the processor and the kernel support fold.
	wide = cpu.X86.HasAVX512F && cpu.X86.HasAVX512VPCLMULQDQ
	// half means that they support foldHalf, and nothing wider.
	half = !wide && cpu.X86.HasAVX2 && hasVPCLMULQDQ()
)

// fold continues a CRC's state over data with registers of 64 bytes. The length is a positive multiple of 256.
//
//go:noescape
func fold(f *folds, state uint32, data []byte) uint32

// foldCopy is fold over src, which it also copies to dst of the same length.
//
//go:noescape
func foldCopy(f *folds, state uint32, dst, src []byte) uint32

// foldHalf is fold with registers of 32 bytes. The length is a multiple of 16, and at least 128.
//
//go:noescape
func foldHalf(f *folds, state uint32, data []byte) uint32

// foldCopyHalf is foldHalf over src, which it also copies to dst of the same length. The length is a positive multiple of 128.
//
//go:noescape
func foldCopyHalf(f *folds, state uint32, dst, src []byte) uint32

// hasVPCLMULQDQ queries the processor. (Package cpu reports it only together with AVX-512.)
func hasVPCLMULQDQ() bool
