package abi

// This file: what stands in the rings besides their layout, numbered as <infiniband/verbs.h> does. The
// kernel's rxe, the daemon and package verbs use the same numbers.

// Status of a completion: enum ibv_wc_status.
const (
	WCStatusSuccess        = 0  // IBV_WC_SUCCESS
	WCStatusLocLenErr      = 1  // IBV_WC_LOC_LEN_ERR
	WCStatusLocQPOpErr     = 2  // IBV_WC_LOC_QP_OP_ERR
	WCStatusLocEECOpErr    = 3  // IBV_WC_LOC_EEC_OP_ERR
	WCStatusLocProtErr     = 4  // IBV_WC_LOC_PROT_ERR
	WCStatusWRFlushErr     = 5  // IBV_WC_WR_FLUSH_ERR
	WCStatusMWBindErr      = 6  // IBV_WC_MW_BIND_ERR
	WCStatusBadRespErr     = 7  // IBV_WC_BAD_RESP_ERR
	WCStatusLocAccessErr   = 8  // IBV_WC_LOC_ACCESS_ERR
	WCStatusRemInvReqErr   = 9  // IBV_WC_REM_INV_REQ_ERR
	WCStatusRemAccessErr   = 10 // IBV_WC_REM_ACCESS_ERR
	WCStatusRemOpErr       = 11 // IBV_WC_REM_OP_ERR
	WCStatusRetryExcErr    = 12 // IBV_WC_RETRY_EXC_ERR
	WCStatusRNRRetryExcErr = 13 // IBV_WC_RNR_RETRY_EXC_ERR
	WCStatusLocRDDViolErr  = 14 // IBV_WC_LOC_RDD_VIOL_ERR
	WCStatusRemInvRDReqErr = 15 // IBV_WC_REM_INV_RD_REQ_ERR
	WCStatusRemAbortErr    = 16 // IBV_WC_REM_ABORT_ERR
	WCStatusInvEECNErr     = 17 // IBV_WC_INV_EECN_ERR
	WCStatusInvEECStateErr = 18 // IBV_WC_INV_EEC_STATE_ERR
	WCStatusFatalErr       = 19 // IBV_WC_FATAL_ERR
	WCStatusRespTimeoutErr = 20 // IBV_WC_RESP_TIMEOUT_ERR
	WCStatusGeneralErr     = 21 // IBV_WC_GENERAL_ERR
)

// Operations of work requests: enum ibv_wr_opcode.
const (
	WRWrite       = 0  // IBV_WR_RDMA_WRITE
	WRWriteImm    = 1  // IBV_WR_RDMA_WRITE_WITH_IMM
	WRSend        = 2  // IBV_WR_SEND
	WRSendImm     = 3  // IBV_WR_SEND_WITH_IMM
	WRRead        = 4  // IBV_WR_RDMA_READ
	WRCmpSwap     = 5  // IBV_WR_ATOMIC_CMP_AND_SWP
	WRFetchAdd    = 6  // IBV_WR_ATOMIC_FETCH_AND_ADD
	WRLocalInv    = 7  // IBV_WR_LOCAL_INV
	WRBindMW      = 8  // IBV_WR_BIND_MW
	WRSendInv     = 9  // IBV_WR_SEND_WITH_INV
	WRFlush       = 14 // IBV_WR_FLUSH; rdma-core 44 and newer have it
	WRAtomicWrite = 15 // IBV_WR_ATOMIC_WRITE; likewise
)

// Flags of work requests: enum ibv_send_flags.
const (
	WRFlagFence     = 1 << 0 // IBV_SEND_FENCE
	WRFlagSignaled  = 1 << 1 // IBV_SEND_SIGNALED
	WRFlagSolicited = 1 << 2 // IBV_SEND_SOLICITED
	WRFlagInline    = 1 << 3 // IBV_SEND_INLINE
)

// Operations of completions: enum ibv_wc_opcode.
const (
	WCOpSend         = 0   // IBV_WC_SEND
	WCOpWrite        = 1   // IBV_WC_RDMA_WRITE
	WCOpRead         = 2   // IBV_WC_RDMA_READ
	WCOpCmpSwap      = 3   // IBV_WC_COMP_SWAP
	WCOpFetchAdd     = 4   // IBV_WC_FETCH_ADD
	WCOpBindMW       = 5   // IBV_WC_BIND_MW
	WCOpLocalInv     = 6   // IBV_WC_LOCAL_INV
	WCOpFlush        = 8   // IBV_WC_FLUSH; rdma-core 44 and newer have it
	WCOpAtomicWrite  = 9   // IBV_WC_ATOMIC_WRITE; likewise
	WCOpRecv         = 128 // IBV_WC_RECV
	WCOpRecvWriteImm = 129 // IBV_WC_RECV_RDMA_WITH_IMM
)

// Flags of completions: enum ibv_wc_flags.
const (
	WCFlagGRH = 1 << 0 // IBV_WC_GRH
	WCFlagImm = 1 << 1 // IBV_WC_WITH_IMM
	WCFlagInv = 1 << 3 // IBV_WC_WITH_INV
)
