// Package crc32c computes CRC-32C, the sum that files are copied with. The results are those of hash/crc32,
// which takes 8 bytes at a step for this polynomial; on processors with wide registers (AVX-512 and
// VPCLMULQDQ) this takes 256. Elsewhere, and for what is short, it is hash/crc32. (For Ethernet's polynomial
// hash/crc32 does the same itself.)
//
// A CRC is the remainder of a polynomial, so a piece of the data may be replaced by another that is
// congruent and lies further behind: times x^n mod P, for n bits. Four registers of 64 bytes are folded that
// way over the next 256 bytes again and again (Gopal et al., "Fast CRC Computation for Generic
// Polynomials Using PCLMULQDQ", Intel 2009), in the end into 16 bytes, and these into the remainder.
package crc32c
