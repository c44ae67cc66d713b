// Package crc computes the two CRCs that data gets on its way: Ethernet's, which the ICRC of
// RoCE is, and CRC-32C, which files are copied with. The results are those of hash/crc32. That takes
// 16 or 8 bytes at a step; on processors with wide registers (AVX-512 and VPCLMULQDQ) this takes 256.
// Elsewhere, and for what is short, it is hash/crc32.
//
// A CRC is the remainder of a polynomial, so a piece of the data may be replaced by another that is
// congruent and lies further behind: times x^n mod P, for n bits. Four registers of 64 bytes are folded that
// way over the next 256 bytes again and again (Gopal et al., "Fast CRC Computation for Generic
// Polynomials Using PCLMULQDQ", Intel 2009), and in the end into 16 bytes, whose CRC is that of all.
package crc
