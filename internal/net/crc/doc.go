// Package crc computes the two 32-bit CRCs of the data path: Ethernet's, from which RoCE derives the ICRC, and Castagnoli's, the
// checksum of file copies. The results equal those of hash/crc32. The speed-up depends on the processor:
//
//	                           Ethernet                           Castagnoli
//	AVX-512 and VPCLMULQDQ     this package, 256 bytes per step   this package, 256 bytes per step
//	AVX2 and VPCLMULQDQ        this package, 128 bytes per step   hash/crc32, 8 bytes per step
//	neither, or little data    hash/crc32, 64 bytes per step      hash/crc32, 8 bytes per step
//
// A CRC is the remainder of a polynomial division. So a part of the data may be replaced by a congruent value at a later position: the
// product with x^n mod P, for a distance of n bits. The code folds four registers of 64 or 32 bytes over the following ones
// in this way, then into 16 bytes, and these into the remainder. See Gopal et al., "Fast CRC Computation for Generic Polynomials Using
// PCLMULQDQ", Intel 2009.
package crc
