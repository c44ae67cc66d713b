package abi

import "structs"

// This file: queue pairs.

// CreateQP is struct ib_uverbs_create_qp.
type CreateQP struct {
	_             structs.HostLayout
	Response      uint64 `c:"response"`
	UserHandle    uint64 `c:"user_handle"`
	PDHandle      uint32 `c:"pd_handle"`
	SendCQHandle  uint32 `c:"send_cq_handle"`
	RecvCQHandle  uint32 `c:"recv_cq_handle"`
	SRQHandle     uint32 `c:"srq_handle"`
	MaxSendWR     uint32 `c:"max_send_wr"`
	MaxRecvWR     uint32 `c:"max_recv_wr"`
	MaxSendSGE    uint32 `c:"max_send_sge"`
	MaxRecvSGE    uint32 `c:"max_recv_sge"`
	MaxInlineData uint32 `c:"max_inline_data"`
	SQSigAll      uint8  `c:"sq_sig_all"`
	QPType        uint8  `c:"qp_type"`
	IsSRQ         uint8  `c:"is_srq"`
	Reserved      uint8  `c:"reserved"`
}

// ExCreateQP is struct ib_uverbs_ex_create_qp.
type ExCreateQP struct {
	_               structs.HostLayout
	UserHandle      uint64 `c:"user_handle"`
	PDHandle        uint32 `c:"pd_handle"`
	SendCQHandle    uint32 `c:"send_cq_handle"`
	RecvCQHandle    uint32 `c:"recv_cq_handle"`
	SRQHandle       uint32 `c:"srq_handle"`
	MaxSendWR       uint32 `c:"max_send_wr"`
	MaxRecvWR       uint32 `c:"max_recv_wr"`
	MaxSendSGE      uint32 `c:"max_send_sge"`
	MaxRecvSGE      uint32 `c:"max_recv_sge"`
	MaxInlineData   uint32 `c:"max_inline_data"`
	SQSigAll        uint8  `c:"sq_sig_all"`
	QPType          uint8  `c:"qp_type"`
	IsSRQ           uint8  `c:"is_srq"`
	Reserved        uint8  `c:"reserved"`
	CompMask        uint32 `c:"comp_mask"`
	CreateFlags     uint32 `c:"create_flags"`
	RWQIndTblHandle uint32 `c:"rwq_ind_tbl_handle"`
	SourceQPN       uint32 `c:"source_qpn"`
}

// CreateQPResp is struct ib_uverbs_create_qp_resp.
type CreateQPResp struct {
	_             structs.HostLayout
	QPHandle      uint32 `c:"qp_handle"`
	QPN           uint32 `c:"qpn"`
	MaxSendWR     uint32 `c:"max_send_wr"`
	MaxRecvWR     uint32 `c:"max_recv_wr"`
	MaxSendSGE    uint32 `c:"max_send_sge"`
	MaxRecvSGE    uint32 `c:"max_recv_sge"`
	MaxInlineData uint32 `c:"max_inline_data"`
	Reserved      uint32 `c:"reserved"`
}

// ExCreateQPResp is struct ib_uverbs_ex_create_qp_resp.
type ExCreateQPResp struct {
	_              structs.HostLayout
	Base           CreateQPResp `c:"base"`
	CompMask       uint32       `c:"comp_mask"`
	ResponseLength uint32       `c:"response_length"`
}

// QPDest is struct ib_uverbs_qp_dest.
type QPDest struct {
	_            structs.HostLayout
	DGID         [16]uint8 `c:"dgid"`
	FlowLabel    uint32    `c:"flow_label"`
	DLID         uint16    `c:"dlid"`
	Reserved     uint16    `c:"reserved"`
	SGIDIndex    uint8     `c:"sgid_index"`
	HopLimit     uint8     `c:"hop_limit"`
	TrafficClass uint8     `c:"traffic_class"`
	SL           uint8     `c:"sl"`
	SrcPathBits  uint8     `c:"src_path_bits"`
	StaticRate   uint8     `c:"static_rate"`
	IsGlobal     uint8     `c:"is_global"`
	PortNum      uint8     `c:"port_num"`
}

// QueryQP is struct ib_uverbs_query_qp.
type QueryQP struct {
	_        structs.HostLayout
	Response uint64 `c:"response"`
	QPHandle uint32 `c:"qp_handle"`
	AttrMask uint32 `c:"attr_mask"`
}

// QueryQPResp is struct ib_uverbs_query_qp_resp.
type QueryQPResp struct {
	_               structs.HostLayout
	Dest            QPDest   `c:"dest"`
	AltDest         QPDest   `c:"alt_dest"`
	MaxSendWR       uint32   `c:"max_send_wr"`
	MaxRecvWR       uint32   `c:"max_recv_wr"`
	MaxSendSGE      uint32   `c:"max_send_sge"`
	MaxRecvSGE      uint32   `c:"max_recv_sge"`
	MaxInlineData   uint32   `c:"max_inline_data"`
	QKey            uint32   `c:"qkey"`
	RQPSN           uint32   `c:"rq_psn"`
	SQPSN           uint32   `c:"sq_psn"`
	DestQPNum       uint32   `c:"dest_qp_num"`
	QPAccessFlags   uint32   `c:"qp_access_flags"`
	PKeyIndex       uint16   `c:"pkey_index"`
	AltPKeyIndex    uint16   `c:"alt_pkey_index"`
	QPState         uint8    `c:"qp_state"`
	CurQPState      uint8    `c:"cur_qp_state"`
	PathMTU         uint8    `c:"path_mtu"`
	PathMigState    uint8    `c:"path_mig_state"`
	SQDraining      uint8    `c:"sq_draining"`
	MaxRDAtomic     uint8    `c:"max_rd_atomic"`
	MaxDestRDAtomic uint8    `c:"max_dest_rd_atomic"`
	MinRNRTimer     uint8    `c:"min_rnr_timer"`
	PortNum         uint8    `c:"port_num"`
	Timeout         uint8    `c:"timeout"`
	RetryCnt        uint8    `c:"retry_cnt"`
	RNRRetry        uint8    `c:"rnr_retry"`
	AltPortNum      uint8    `c:"alt_port_num"`
	AltTimeout      uint8    `c:"alt_timeout"`
	SQSigAll        uint8    `c:"sq_sig_all"`
	Reserved        [5]uint8 `c:"reserved"`
}

// ModifyQP is struct ib_uverbs_modify_qp.
type ModifyQP struct {
	_                structs.HostLayout
	Dest             QPDest   `c:"dest"`
	AltDest          QPDest   `c:"alt_dest"`
	QPHandle         uint32   `c:"qp_handle"`
	AttrMask         uint32   `c:"attr_mask"`
	QKey             uint32   `c:"qkey"`
	RQPSN            uint32   `c:"rq_psn"`
	SQPSN            uint32   `c:"sq_psn"`
	DestQPNum        uint32   `c:"dest_qp_num"`
	QPAccessFlags    uint32   `c:"qp_access_flags"`
	PKeyIndex        uint16   `c:"pkey_index"`
	AltPKeyIndex     uint16   `c:"alt_pkey_index"`
	QPState          uint8    `c:"qp_state"`
	CurQPState       uint8    `c:"cur_qp_state"`
	PathMTU          uint8    `c:"path_mtu"`
	PathMigState     uint8    `c:"path_mig_state"`
	EnSQDAsyncNotify uint8    `c:"en_sqd_async_notify"`
	MaxRDAtomic      uint8    `c:"max_rd_atomic"`
	MaxDestRDAtomic  uint8    `c:"max_dest_rd_atomic"`
	MinRNRTimer      uint8    `c:"min_rnr_timer"`
	PortNum          uint8    `c:"port_num"`
	Timeout          uint8    `c:"timeout"`
	RetryCnt         uint8    `c:"retry_cnt"`
	RNRRetry         uint8    `c:"rnr_retry"`
	AltPortNum       uint8    `c:"alt_port_num"`
	AltTimeout       uint8    `c:"alt_timeout"`
	Reserved         [2]uint8 `c:"reserved"`
}

// ExModifyQP is struct ib_uverbs_ex_modify_qp.
type ExModifyQP struct {
	_         structs.HostLayout
	Base      ModifyQP `c:"base"`
	RateLimit uint32   `c:"rate_limit"`
	Reserved  uint32   `c:"reserved"`
}

// ExModifyQPResp is struct ib_uverbs_ex_modify_qp_resp.
type ExModifyQPResp struct {
	_              structs.HostLayout
	CompMask       uint32 `c:"comp_mask"`
	ResponseLength uint32 `c:"response_length"`
}

// DestroyQP is struct ib_uverbs_destroy_qp.
type DestroyQP struct {
	_        structs.HostLayout
	Response uint64 `c:"response"`
	QPHandle uint32 `c:"qp_handle"`
	Reserved uint32 `c:"reserved"`
}

// DestroyQPResp is struct ib_uverbs_destroy_qp_resp.
type DestroyQPResp struct {
	_              structs.HostLayout
	EventsReported uint32 `c:"events_reported"`
}

// PostSend is struct ib_uverbs_post_send.
type PostSend struct {
	_        structs.HostLayout
	Response uint64 `c:"response"`
	QPHandle uint32 `c:"qp_handle"`
	WRCount  uint32 `c:"wr_count"`
	SGECount uint32 `c:"sge_count"`
	WQESize  uint32 `c:"wqe_size"`
}

// PostRecv is struct ib_uverbs_post_recv.
type PostRecv struct {
	_        structs.HostLayout
	Response uint64 `c:"response"`
	QPHandle uint32 `c:"qp_handle"`
	WRCount  uint32 `c:"wr_count"`
	SGECount uint32 `c:"sge_count"`
	WQESize  uint32 `c:"wqe_size"`
}

// PostSRQRecv is struct ib_uverbs_post_srq_recv.
type PostSRQRecv struct {
	_         structs.HostLayout
	Response  uint64 `c:"response"`
	SRQHandle uint32 `c:"srq_handle"`
	WRCount   uint32 `c:"wr_count"`
	SGECount  uint32 `c:"sge_count"`
	WQESize   uint32 `c:"wqe_size"`
}

// PostSendResp is struct ib_uverbs_post_send_resp.
type PostSendResp struct {
	_     structs.HostLayout
	BadWR uint32 `c:"bad_wr"`
}
