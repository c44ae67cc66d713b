#include "textflag.h"

// FOLD moves register a on over what its factors in k say, and adds b: a = a.low*k.low ^ a.high*k.high ^ b,
// for each 16 bytes. t is for use.
#define FOLD(a, k, b, t) \
	VPCLMULQDQ $0x00, k, a, t; \
	VPCLMULQDQ $0x11, k, a, a; \
	VPTERNLOGQ $0x96, b, t, a

// JOIN makes 16 bytes, in X2, of the four registers of 64.
#define JOIN \
	VBROADCASTI32X4 16(AX), Z8; \
	VBROADCASTI32X4 32(AX), Z9; \
	VBROADCASTI32X4 48(AX), Z10; \
	FOLD(Z0, Z8, Z3, Z4); \
	FOLD(Z1, Z9, Z0, Z5); \
	FOLD(Z2, Z10, Z1, Z6); \
	/* Within Z2: three of its four parts are folded to the last. */ \
	VMOVDQU64 64(AX), Z8; \
	VEXTRACTI32X4 $3, Z2, X1; \
	VPCLMULQDQ $0x00, Z8, Z2, Z4; \
	VPCLMULQDQ $0x11, Z8, Z2, Z5; \
	VPXORQ Z4, Z5, Z5; /* the last part is 0: so are its factors */ \
	VEXTRACTI32X4 $1, Z5, X2; \
	VEXTRACTI32X4 $2, Z5, X3; \
	VPXOR X1, X5, X5; \
	VPXOR X2, X3, X3; \
	VPXOR X3, X5, X2

// REDUCE makes a state, in AX, of the 16 bytes in X2: these to 12, to 8, and those to the remainder (Barrett).
#define REDUCE \
	VMOVDQU 128(AX), X8; \
	VPCLMULQDQ $0x00, X8, X2, X0; \
	VPSRLDQ $8, X2, X5; \
	VPXOR X0, X5, X5; \
	VPCMPEQD X9, X9, X9; \
	VPSRLDQ $12, X9, X9; /* the first four bytes */ \
	VPAND X9, X5, X0; \
	VPCLMULQDQ $0x10, X8, X0, X0; \
	VPSRLDQ $4, X5, X5; \
	VPXOR X0, X5, X5; \
	VMOVDQU 144(AX), X8; \
	VPAND X9, X5, X0; \
	VPCLMULQDQ $0x10, X8, X0, X0; \
	VPAND X9, X0, X0; \
	VPCLMULQDQ $0x00, X8, X0, X0; \
	VPXOR X0, X5, X5; \
	VPEXTRD $1, X5, AX

// func fold(f *folds, state uint32, data []byte) uint32
TEXT ·fold(SB), NOSPLIT, $0-44
	MOVQ f+0(FP), AX
	MOVL state+8(FP), BX
	MOVQ data_base+16(FP), SI
	MOVQ data_len+24(FP), CX

	VMOVDQU64 (SI), Z0
	VMOVDQU64 64(SI), Z1
	VMOVDQU64 128(SI), Z2
	VMOVDQU64 192(SI), Z3
	VMOVD BX, X4 // and zeroes above
	VPXORQ Z4, Z0, Z0
	ADDQ $256, SI
	SUBQ $256, CX
	JZ join

	VBROADCASTI32X4 (AX), Z8 // loop
loop:
	FOLD(Z0, Z8, (SI), Z4)
	FOLD(Z1, Z8, 64(SI), Z5)
	FOLD(Z2, Z8, 128(SI), Z6)
	FOLD(Z3, Z8, 192(SI), Z7)
	ADDQ $256, SI
	SUBQ $256, CX
	JNZ loop

join:
	JOIN
	REDUCE
	MOVL AX, ret+40(FP)
	VZEROUPPER
	RET

// PASS is FOLD with the next bytes of src, which it puts in dst, too.
#define PASS(a, k, at, t, b) \
	VMOVDQU64 at(SI), b; \
	VPCLMULQDQ $0x00, k, a, t; \
	VPCLMULQDQ $0x11, k, a, a; \
	VMOVDQU64 b, at(DI); \
	VPTERNLOGQ $0x96, b, t, a

// func foldCopy(f *folds, state uint32, dst, src []byte) uint32
TEXT ·foldCopy(SB), NOSPLIT, $0-68
	MOVQ f+0(FP), AX
	MOVL state+8(FP), BX
	MOVQ dst_base+16(FP), DI
	MOVQ src_base+40(FP), SI
	MOVQ src_len+48(FP), CX

	VMOVDQU64 (SI), Z0
	VMOVDQU64 64(SI), Z1
	VMOVDQU64 128(SI), Z2
	VMOVDQU64 192(SI), Z3
	VMOVDQU64 Z0, (DI)
	VMOVDQU64 Z1, 64(DI)
	VMOVDQU64 Z2, 128(DI)
	VMOVDQU64 Z3, 192(DI)
	VMOVD BX, X4 // and zeroes above
	VPXORQ Z4, Z0, Z0
	ADDQ $256, SI
	ADDQ $256, DI
	SUBQ $256, CX
	JZ join

	VBROADCASTI32X4 (AX), Z8 // loop
	PCALIGN $32
loop:
	PASS(Z0, Z8, 0, Z4, Z9)
	PASS(Z1, Z8, 64, Z5, Z10)
	PASS(Z2, Z8, 128, Z6, Z11)
	PASS(Z3, Z8, 192, Z7, Z12)
	ADDQ $256, SI
	ADDQ $256, DI
	SUBQ $256, CX
	JNZ loop

join:
	JOIN
	REDUCE
	MOVL AX, ret+64(FP)
	VZEROUPPER
	RET

// HALF is FOLD for registers of 32 and 16 bytes, without AVX-512.
#define HALF(a, k, b, t) \
	VPCLMULQDQ $0x00, k, a, t; \
	VPCLMULQDQ $0x11, k, a, a; \
	VPXOR t, a, a; \
	VPXOR b, a, a

// JOINHALF makes 32 bytes, in Y2, of the four registers of 32.
#define JOINHALF \
	VBROADCASTI128 16(AX), Y8; \
	VBROADCASTI128 32(AX), Y9; \
	VBROADCASTI128 48(AX), Y10; \
	HALF(Y0, Y8, Y3, Y4); \
	HALF(Y1, Y9, Y0, Y5); \
	HALF(Y2, Y10, Y1, Y6)

// func foldHalf(f *folds, state uint32, data []byte) uint32
TEXT ·foldHalf(SB), NOSPLIT, $0-44
	MOVQ f+0(FP), AX
	MOVL state+8(FP), BX
	MOVQ data_base+16(FP), SI
	MOVQ data_len+24(FP), CX

	VMOVDQU (SI), Y0
	VMOVDQU 32(SI), Y1
	VMOVDQU 64(SI), Y2
	VMOVDQU 96(SI), Y3
	VMOVD BX, X4 // and zeroes above
	VPXOR Y4, Y0, Y0
	ADDQ $128, SI
	SUBQ $256, CX // of what is left, 128 less
	JLT join

	VBROADCASTI128 (AX), Y8 // loop
	PCALIGN $32
loop:
	HALF(Y0, Y8, (SI), Y4)
	HALF(Y1, Y8, 32(SI), Y5)
	HALF(Y2, Y8, 64(SI), Y6)
	HALF(Y3, Y8, 96(SI), Y7)
	ADDQ $128, SI
	SUBQ $128, CX
	JGE loop

join:
	JOINHALF

	// What is left of the data: by 32 bytes, then by 16.
	ADDQ $96, CX // less 32
	JLT within
by32:
	HALF(Y2, Y10, (SI), Y4)
	ADDQ $32, SI
	SUBQ $32, CX
	JGE by32

within:
	VEXTRACTI128 $1, Y2, X1
	VMOVDQU 96(AX), X8 // over 16 bytes
	HALF(X2, X8, X1, X4)
	ADDQ $16, CX
	JLT end
	HALF(X2, X8, (SI), X4)

end:
	REDUCE
	MOVL AX, ret+40(FP)
	VZEROUPPER
	RET

// func hasVPCLMULQDQ() bool
TEXT ·hasVPCLMULQDQ(SB), NOSPLIT, $0-1
	MOVL $7, AX // there where AVX2 is
	XORL CX, CX
	CPUID
	SHRL $10, CX
	ANDL $1, CX
	MOVB CX, ret+0(FP)
	RET

// TAKE is HALF with the next bytes of src, which it puts in dst, too.
#define TAKE(a, k, at, t, b) \
	VMOVDQU at(SI), b; \
	VPCLMULQDQ $0x00, k, a, t; \
	VPCLMULQDQ $0x11, k, a, a; \
	VMOVDQU b, at(DI); \
	VPXOR t, a, a; \
	VPXOR b, a, a

// func foldCopyHalf(f *folds, state uint32, dst, src []byte) uint32
TEXT ·foldCopyHalf(SB), NOSPLIT, $0-68
	MOVQ f+0(FP), AX
	MOVL state+8(FP), BX
	MOVQ dst_base+16(FP), DI
	MOVQ src_base+40(FP), SI
	MOVQ src_len+48(FP), CX

	VMOVDQU (SI), Y0
	VMOVDQU 32(SI), Y1
	VMOVDQU 64(SI), Y2
	VMOVDQU 96(SI), Y3
	VMOVDQU Y0, (DI)
	VMOVDQU Y1, 32(DI)
	VMOVDQU Y2, 64(DI)
	VMOVDQU Y3, 96(DI)
	VMOVD BX, X4 // and zeroes above
	VPXOR Y4, Y0, Y0
	ADDQ $128, SI
	ADDQ $128, DI
	SUBQ $128, CX
	JZ join

	VBROADCASTI128 (AX), Y8 // loop
	PCALIGN $32
loop:
	TAKE(Y0, Y8, 0, Y4, Y9)
	TAKE(Y1, Y8, 32, Y5, Y10)
	TAKE(Y2, Y8, 64, Y6, Y11)
	TAKE(Y3, Y8, 96, Y7, Y12)
	ADDQ $128, SI
	ADDQ $128, DI
	SUBQ $128, CX
	JNZ loop

join:
	JOINHALF
	VEXTRACTI128 $1, Y2, X1
	VMOVDQU 96(AX), X8 // over 16 bytes
	HALF(X2, X8, X1, X4)
	REDUCE
	MOVL AX, ret+64(FP)
	VZEROUPPER
	RET
