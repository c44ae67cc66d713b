package abi

import "structs"

// This file: completion channels and completion queues.

// CreateCompChannel is struct ib_uverbs_create_comp_channel.
type CreateCompChannel struct {
	_        structs.HostLayout
	Response uint64 `c:"response"`
}

// CreateCompChannelResp is struct ib_uverbs_create_comp_channel_resp.
type CreateCompChannelResp struct {
	_  structs.HostLayout
	FD uint32 `c:"fd"`
}

// CreateCQ is struct ib_uverbs_create_cq.
type CreateCQ struct {
	_           structs.HostLayout
	Response    uint64 `c:"response"`
	UserHandle  uint64 `c:"user_handle"`
	CQE         uint32 `c:"cqe"`
	CompVector  uint32 `c:"comp_vector"`
	CompChannel int32  `c:"comp_channel"`
	Reserved    uint32 `c:"reserved"`
}

// ExCreateCQ is struct ib_uverbs_ex_create_cq.
type ExCreateCQ struct {
	_           structs.HostLayout
	UserHandle  uint64 `c:"user_handle"`
	CQE         uint32 `c:"cqe"`
	CompVector  uint32 `c:"comp_vector"`
	CompChannel int32  `c:"comp_channel"`
	CompMask    uint32 `c:"comp_mask"`
	Flags       uint32 `c:"flags"`
	Reserved    uint32 `c:"reserved"`
}

// CreateCQResp is struct ib_uverbs_create_cq_resp.
type CreateCQResp struct {
	_        structs.HostLayout
	CQHandle uint32 `c:"cq_handle"`
	CQE      uint32 `c:"cqe"`
}

// ExCreateCQResp is struct ib_uverbs_ex_create_cq_resp.
type ExCreateCQResp struct {
	_              structs.HostLayout
	Base           CreateCQResp `c:"base"`
	CompMask       uint32       `c:"comp_mask"`
	ResponseLength uint32       `c:"response_length"`
}

// ResizeCQ is struct ib_uverbs_resize_cq.
type ResizeCQ struct {
	_        structs.HostLayout
	Response uint64 `c:"response"`
	CQHandle uint32 `c:"cq_handle"`
	CQE      uint32 `c:"cqe"`
}

// ResizeCQResp is struct ib_uverbs_resize_cq_resp.
type ResizeCQResp struct {
	_        structs.HostLayout
	CQE      uint32 `c:"cqe"`
	Reserved uint32 `c:"reserved"`
}

// ReqNotifyCQ is struct ib_uverbs_req_notify_cq.
type ReqNotifyCQ struct {
	_             structs.HostLayout
	CQHandle      uint32 `c:"cq_handle"`
	SolicitedOnly uint32 `c:"solicited_only"`
}

// DestroyCQ is struct ib_uverbs_destroy_cq.
type DestroyCQ struct {
	_        structs.HostLayout
	Response uint64 `c:"response"`
	CQHandle uint32 `c:"cq_handle"`
	Reserved uint32 `c:"reserved"`
}

// DestroyCQResp is struct ib_uverbs_destroy_cq_resp.
type DestroyCQResp struct {
	_                   structs.HostLayout
	CompEventsReported  uint32 `c:"comp_events_reported"`
	AsyncEventsReported uint32 `c:"async_events_reported"`
}

// WC is struct ib_uverbs_wc.
type WC struct {
	_            structs.HostLayout
	WRID         uint64 `c:"wr_id"`
	Status       uint32 `c:"status"`
	Opcode       uint32 `c:"opcode"`
	VendorErr    uint32 `c:"vendor_err"`
	ByteLen      uint32 `c:"byte_len"`
	ImmData      uint32 `c:"ex.imm_data"`
	QPNum        uint32 `c:"qp_num"`
	SrcQP        uint32 `c:"src_qp"`
	WCFlags      uint32 `c:"wc_flags"`
	PKeyIndex    uint16 `c:"pkey_index"`
	SLID         uint16 `c:"slid"`
	SL           uint8  `c:"sl"`
	DLIDPathBits uint8  `c:"dlid_path_bits"`
	PortNum      uint8  `c:"port_num"`
	Reserved     uint8  `c:"reserved"`
}
