#include "textflag.h"

// FOLD moves register a on over what its factors in k say, and adds b: a = a.low*k.low ^ a.high*k.high ^ b,
// for each 16 bytes. t is for use.
#define FOLD(a, k, b, t) \
	VPCLMULQDQ $0x00, k, a, t; \
	VPCLMULQDQ $0x11, k, a, a; \
	VPTERNLOGQ $0x96, b, t, a

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
	VBROADCASTI32X4 16(AX), Z8
	VBROADCASTI32X4 32(AX), Z9
	VBROADCASTI32X4 48(AX), Z10
	FOLD(Z0, Z8, Z3, Z4)
	FOLD(Z1, Z9, Z0, Z5)
	FOLD(Z2, Z10, Z1, Z6)

	// Within Z2: three of its four parts are folded to the last.
	VMOVDQU64 64(AX), Z8
	VEXTRACTI32X4 $3, Z2, X1
	VPCLMULQDQ $0x00, Z8, Z2, Z4
	VPCLMULQDQ $0x11, Z8, Z2, Z5
	VPXORQ Z4, Z5, Z5 // the last part is 0: so are its factors
	VEXTRACTI32X4 $1, Z5, X2
	VEXTRACTI32X4 $2, Z5, X3
	VPXOR X1, X5, X5
	VPXOR X2, X3, X3
	VPXOR X3, X5, X5

	// 16 bytes to 12, to 8, and those to the remainder (Barrett).
	VMOVDQU 128(AX), X8
	VPCLMULQDQ $0x00, X8, X5, X0
	VPSRLDQ $8, X5, X5
	VPXOR X0, X5, X5
	VPCMPEQD X9, X9, X9
	VPSRLDQ $12, X9, X9 // the first four bytes
	VPAND X9, X5, X0
	VPCLMULQDQ $0x10, X8, X0, X0
	VPSRLDQ $4, X5, X5
	VPXOR X0, X5, X5
	VMOVDQU 144(AX), X8
	VPAND X9, X5, X0
	VPCLMULQDQ $0x10, X8, X0, X0
	VPAND X9, X0, X0
	VPCLMULQDQ $0x00, X8, X0, X0
	VPXOR X0, X5, X5
	VPEXTRD $1, X5, AX
	MOVL AX, ret+40(FP)
	VZEROUPPER
	RET
