/* SPDX-License-Identifier: Apache-2.0 */
/*
 * System calls that touch nothing but registers: no errno, no cancellation, no
 * glibc symbol. Code that runs while pages of the process are write protected, in
 * a vfork child, or on the fork monitor's bare stack may use only these. Each
 * returns the kernel's answer, an error as a negative errno.
 */
#ifndef VRDMA_SYS_H
#define VRDMA_SYS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>

static inline long sys6(long n, long a, long b, long c, long d, long e, long f)
{
#if defined(__x86_64__)
	long r;
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	__asm__ volatile("syscall"
			 : "=a"(r)
			 : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return r;
#elif defined(__aarch64__)
	register long x8 __asm__("x8") = n;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	register long x5 __asm__("x5") = f;
	__asm__ volatile("svc 0"
			 : "+r"(x0)
			 : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
			 : "memory", "cc");
	return x0;
#else
#error "libvrdma.so knows x86_64 and aarch64; add the system call sequence of this machine"
#endif
}

#define SYS_PICK(_0, _1, _2, _3, _4, _5, _6, name, ...) name
#define SYS_0(n) sys6(n, 0, 0, 0, 0, 0, 0)
#define SYS_1(n, a) sys6(n, (long)(a), 0, 0, 0, 0, 0)
#define SYS_2(n, a, b) sys6(n, (long)(a), (long)(b), 0, 0, 0, 0)
#define SYS_3(n, a, b, c) sys6(n, (long)(a), (long)(b), (long)(c), 0, 0, 0)
#define SYS_4(n, a, b, c, d) sys6(n, (long)(a), (long)(b), (long)(c), (long)(d), 0, 0)
#define SYS_5(n, a, b, c, d, e) sys6(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), 0)
#define SYS_6(n, a, b, c, d, e, f) \
	sys6(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))
/* sys(number, arguments...) */
#define sys(...) SYS_PICK(__VA_ARGS__, SYS_6, SYS_5, SYS_4, SYS_3, SYS_2, SYS_1, SYS_0)(__VA_ARGS__)

#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef SYS_faccessat2
#define SYS_faccessat2 439
#endif

#endif
