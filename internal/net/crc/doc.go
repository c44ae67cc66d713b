// Package crc computes the two CRCs of 32 bits that lie on the way of all data: Ethernet's, of which RoCE makes the ICRC, and
// Castagnoli's, the sum that files are copied with. The results are those of hash/crc32. What this is faster by
// depends on the processor:
//
//	                           Ethernet                           Castagnoli
//	AVX-512 and VPCLMULQDQ     ours, 256 bytes a step             ours, 256 bytes a step
//	AVX2 and VPCLMULQDQ        ours, 128 bytes a step             hash/crc32, 8 bytes a step
//	neither, or little data    hash/crc32, 64 bytes a step        hash/crc32, 8 bytes a step
//
// A CRC is the remainder of a polynomial, so a piece of the data may be replaced by another that is
// congruent and lies further behind: times x^n mod P, for n bits. Four registers of 64 or 32 bytes are folded that
// way over the next ones again and again (Gopal et al., "Fast CRC Computation for Generic
// Polynomials Using PCLMULQDQ", Intel 2009), in the end into 16 bytes, and these into the remainder.
package crc
