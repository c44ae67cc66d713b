package crc32c

import "golang.org/x/sys/cpu"

// wide: the processor and the kernel have what fold needs.
var wide = cpu.X86.HasAVX512F && cpu.X86.HasAVX512VPCLMULQDQ

// fold takes a CRC's state on over data, whose length is a multiple of 256, and not 0.
//
//go:noescape
func fold(f *folds, state uint32, data []byte) uint32
