package abi

import "structs"

// This file: <rdma/rdma_user_rxe.h>, what the rxe provider adds to commands and
// how it lays out the rings it shares with the device.

// MMInfo is struct mminfo: where in the command fd a ring is mapped.
type MMInfo struct {
	_      structs.HostLayout
	Offset uint64 `c:"offset"`
	Size   uint32 `c:"size"`
	Pad    uint32 `c:"pad"`
}

// RxeCreateAHResp is struct rxe_create_ah_resp.
type RxeCreateAHResp struct {
	_        structs.HostLayout
	AHNum    uint32 `c:"ah_num"`
	Reserved uint32 `c:"reserved"`
}

// RxeCreateCQResp is struct rxe_create_cq_resp.
type RxeCreateCQResp struct {
	_  structs.HostLayout
	MI MMInfo `c:"mi"`
}

// RxeResizeCQResp is struct rxe_resize_cq_resp.
type RxeResizeCQResp struct {
	_  structs.HostLayout
	MI MMInfo `c:"mi"`
}

// RxeCreateQPResp is struct rxe_create_qp_resp.
type RxeCreateQPResp struct {
	_    structs.HostLayout
	RQMI MMInfo `c:"rq_mi"`
	SQMI MMInfo `c:"sq_mi"`
}

// RxeCreateSRQResp is struct rxe_create_srq_resp.
type RxeCreateSRQResp struct {
	_        structs.HostLayout
	MI       MMInfo `c:"mi"`
	SRQNum   uint32 `c:"srq_num"`
	Reserved uint32 `c:"reserved"`
}

// RxeModifySRQCmd is struct rxe_modify_srq_cmd.
type RxeModifySRQCmd struct {
	_            structs.HostLayout
	MMapInfoAddr uint64 `c:"mmap_info_addr"`
}

// Offsets in struct rxe_queue_buf, the head of every ring. The four index words
// are 32 bits; each index owns its cache line.
const (
	QueueLog2ElemSize  = 0   // log2_elem_size
	QueueIndexMask     = 4   // index_mask
	QueueProducerIndex = 128 // producer_index
	QueueConsumerIndex = 256 // consumer_index
	QueueData          = 384 // data
)

// Offsets in struct rxe_send_wqe, an element of a send ring. The wr union begins
// at SendWR; which of its members holds is decided by opcode and QP type.
const (
	SendWRID        = 0  // wr.wr_id
	SendOpcode      = 12 // wr.opcode
	SendFlags       = 16 // wr.send_flags
	SendImm         = 20 // wr.ex.imm_data
	SendWR          = 24 // wr.wr
	SendRemoteAddr  = 24 // wr.wr.rdma.remote_addr, wr.wr.atomic.remote_addr
	SendRKey        = 32 // wr.wr.rdma.rkey
	SendCompareAdd  = 32 // wr.wr.atomic.compare_add
	SendSwap        = 40 // wr.wr.atomic.swap
	SendAtomicRKey  = 48 // wr.wr.atomic.rkey
	SendRemoteQPN   = 24 // wr.wr.ud.remote_qpn
	SendRemoteQKey  = 28 // wr.wr.ud.remote_qkey
	SendUDPKeyIndex = 32 // wr.wr.ud.pkey_index
	SendAHNum       = 36 // wr.wr.ud.ah_num
	SendAV          = 56 // wr.wr.ud.av
	SendMWAddr      = 24 // wr.wr.mw.addr
	SendMWLength    = 32 // wr.wr.mw.length
	SendMWMRLKey    = 40 // wr.wr.mw.mr_lkey
	SendMWMWRKey    = 44 // wr.wr.mw.mw_rkey
	SendMWRKey      = 48 // wr.wr.mw.rkey
	SendMWAccess    = 52 // wr.wr.mw.access
	SendFlushRKey   = 36 // wr.wr.flush.rkey; Linux 6.2 and newer have it
	SendFlushType   = 40 // wr.wr.flush.type
	SendFlushLevel  = 41 // wr.wr.flush.level
	SendStatus      = 144
	SendState       = 148
	SendIOVA        = 152 // iova
	SendSSN         = 176 // ssn
	SendDMALength   = 184 // dma.length
	SendDMAResid    = 188 // dma.resid
	SendNumSGE      = 196 // dma.num_sge
	SendSGE         = 208 // dma.sge
	SendInline      = 208 // dma.inline_data
	SendWQESize     = 208 // sizeof(struct rxe_send_wqe)
)

// Offsets in struct rxe_av, the address vector that old providers put into a UD
// send request.
const (
	AVPortNum     = 0
	AVNetworkType = 1
	AVDGID        = 8  // grh.dgid
	AVSGIDIndex   = 28 // grh.sgid_index
	AVSize        = 88
)

// Offsets in struct rxe_recv_wqe, an element of a receive ring.
const (
	RecvWRID      = 0  // wr_id
	RecvDMALength = 16 // dma.length
	RecvDMAResid  = 20 // dma.resid
	RecvNumSGE    = 28 // dma.num_sge
	RecvSGE       = 40 // dma.sge
	RecvWQESize   = 40 // sizeof(struct rxe_recv_wqe)
)

// Offsets in struct rxe_sge.
const (
	SGEAddr   = 0  // addr
	SGELength = 8  // length
	SGELKey   = 12 // lkey
	SGESize   = 16 // sizeof(struct rxe_sge)
)

// Offsets in struct ib_uverbs_wc, an element of a completion ring; type WC is
// the same as a struct.
const (
	WCWRID      = 0  // wr_id
	WCStatus    = 8  // status
	WCOpcode    = 12 // opcode
	WCVendorErr = 16 // vendor_err
	WCByteLen   = 20 // byte_len
	WCImm       = 24 // ex.imm_data
	WCQPNum     = 28 // qp_num
	WCSrcQP     = 32 // src_qp
	WCFlags     = 36 // wc_flags
	WCPKeyIndex = 40 // pkey_index
	WCSLID      = 42 // slid
	WCSL        = 44 // sl
	WCPathBits  = 45 // dlid_path_bits
	WCPortNum   = 46 // port_num
	WCSize      = 48 // sizeof(struct ib_uverbs_wc)
)
