package abi

import "structs"

// This file: shared receive queues.

// CreateSRQ is struct ib_uverbs_create_srq.
type CreateSRQ struct {
	_          structs.HostLayout
	Response   uint64 `c:"response"`
	UserHandle uint64 `c:"user_handle"`
	PDHandle   uint32 `c:"pd_handle"`
	MaxWR      uint32 `c:"max_wr"`
	MaxSGE     uint32 `c:"max_sge"`
	SRQLimit   uint32 `c:"srq_limit"`
}

// CreateXSRQ is struct ib_uverbs_create_xsrq.
type CreateXSRQ struct {
	_          structs.HostLayout
	Response   uint64 `c:"response"`
	UserHandle uint64 `c:"user_handle"`
	SRQType    uint32 `c:"srq_type"`
	PDHandle   uint32 `c:"pd_handle"`
	MaxWR      uint32 `c:"max_wr"`
	MaxSGE     uint32 `c:"max_sge"`
	SRQLimit   uint32 `c:"srq_limit"`
	MaxNumTags uint32 `c:"max_num_tags"`
	XRCDHandle uint32 `c:"xrcd_handle"`
	CQHandle   uint32 `c:"cq_handle"`
}

// CreateSRQResp is struct ib_uverbs_create_srq_resp.
type CreateSRQResp struct {
	_         structs.HostLayout
	SRQHandle uint32 `c:"srq_handle"`
	MaxWR     uint32 `c:"max_wr"`
	MaxSGE    uint32 `c:"max_sge"`
	SRQN      uint32 `c:"srqn"`
}

// ModifySRQ is struct ib_uverbs_modify_srq.
type ModifySRQ struct {
	_         structs.HostLayout
	SRQHandle uint32 `c:"srq_handle"`
	AttrMask  uint32 `c:"attr_mask"`
	MaxWR     uint32 `c:"max_wr"`
	SRQLimit  uint32 `c:"srq_limit"`
}

// QuerySRQ is struct ib_uverbs_query_srq.
type QuerySRQ struct {
	_         structs.HostLayout
	Response  uint64 `c:"response"`
	SRQHandle uint32 `c:"srq_handle"`
	Reserved  uint32 `c:"reserved"`
}

// QuerySRQResp is struct ib_uverbs_query_srq_resp.
type QuerySRQResp struct {
	_        structs.HostLayout
	MaxWR    uint32 `c:"max_wr"`
	MaxSGE   uint32 `c:"max_sge"`
	SRQLimit uint32 `c:"srq_limit"`
	Reserved uint32 `c:"reserved"`
}

// DestroySRQ is struct ib_uverbs_destroy_srq.
type DestroySRQ struct {
	_         structs.HostLayout
	Response  uint64 `c:"response"`
	SRQHandle uint32 `c:"srq_handle"`
	Reserved  uint32 `c:"reserved"`
}

// DestroySRQResp is struct ib_uverbs_destroy_srq_resp.
type DestroySRQResp struct {
	_              structs.HostLayout
	EventsReported uint32 `c:"events_reported"`
}
