package abi

import "structs"

// This file: context, device and port.

// GetContext is struct ib_uverbs_get_context.
type GetContext struct {
	_        structs.HostLayout
	Response uint64 `c:"response"`
}

// GetContextResp is struct ib_uverbs_get_context_resp.
type GetContextResp struct {
	_              structs.HostLayout
	AsyncFD        uint32 `c:"async_fd"`
	NumCompVectors uint32 `c:"num_comp_vectors"`
}

// QueryDevice is struct ib_uverbs_query_device.
type QueryDevice struct {
	_        structs.HostLayout
	Response uint64 `c:"response"`
}

// QueryDeviceResp is struct ib_uverbs_query_device_resp.
type QueryDeviceResp struct {
	_                     structs.HostLayout
	FWVer                 uint64   `c:"fw_ver"`
	NodeGUID              uint64   `c:"node_guid"`
	SysImageGUID          uint64   `c:"sys_image_guid"`
	MaxMRSize             uint64   `c:"max_mr_size"`
	PageSizeCap           uint64   `c:"page_size_cap"`
	VendorID              uint32   `c:"vendor_id"`
	VendorPartID          uint32   `c:"vendor_part_id"`
	HWVer                 uint32   `c:"hw_ver"`
	MaxQP                 uint32   `c:"max_qp"`
	MaxQPWR               uint32   `c:"max_qp_wr"`
	DeviceCapFlags        uint32   `c:"device_cap_flags"`
	MaxSGE                uint32   `c:"max_sge"`
	MaxSGERD              uint32   `c:"max_sge_rd"`
	MaxCQ                 uint32   `c:"max_cq"`
	MaxCQE                uint32   `c:"max_cqe"`
	MaxMR                 uint32   `c:"max_mr"`
	MaxPD                 uint32   `c:"max_pd"`
	MaxQPRDAtom           uint32   `c:"max_qp_rd_atom"`
	MaxEERDAtom           uint32   `c:"max_ee_rd_atom"`
	MaxResRDAtom          uint32   `c:"max_res_rd_atom"`
	MaxQPInitRDAtom       uint32   `c:"max_qp_init_rd_atom"`
	MaxEEInitRDAtom       uint32   `c:"max_ee_init_rd_atom"`
	AtomicCap             uint32   `c:"atomic_cap"`
	MaxEE                 uint32   `c:"max_ee"`
	MaxRDD                uint32   `c:"max_rdd"`
	MaxMW                 uint32   `c:"max_mw"`
	MaxRawIPV6QP          uint32   `c:"max_raw_ipv6_qp"`
	MaxRawEthyQP          uint32   `c:"max_raw_ethy_qp"`
	MaxMcastGroup         uint32   `c:"max_mcast_grp"`
	MaxMcastQPAttach      uint32   `c:"max_mcast_qp_attach"`
	MaxTotalMcastQPAttach uint32   `c:"max_total_mcast_qp_attach"`
	MaxAH                 uint32   `c:"max_ah"`
	MaxFMR                uint32   `c:"max_fmr"`
	MaxMapPerFMR          uint32   `c:"max_map_per_fmr"`
	MaxSRQ                uint32   `c:"max_srq"`
	MaxSRQWR              uint32   `c:"max_srq_wr"`
	MaxSRQSGE             uint32   `c:"max_srq_sge"`
	MaxPKeys              uint16   `c:"max_pkeys"`
	LocalCAAckDelay       uint8    `c:"local_ca_ack_delay"`
	PhysPortCnt           uint8    `c:"phys_port_cnt"`
	Reserved              [4]uint8 `c:"reserved"`
}

// ExQueryDevice is struct ib_uverbs_ex_query_device.
type ExQueryDevice struct {
	_        structs.HostLayout
	CompMask uint32 `c:"comp_mask"`
	Reserved uint32 `c:"reserved"`
}

// ODPCaps is struct ib_uverbs_odp_caps.
type ODPCaps struct {
	_           structs.HostLayout
	GeneralCaps uint64 `c:"general_caps"`
	RCODPCaps   uint32 `c:"per_transport_caps.rc_odp_caps"`
	UCODPCaps   uint32 `c:"per_transport_caps.uc_odp_caps"`
	UDODPCaps   uint32 `c:"per_transport_caps.ud_odp_caps"`
	Reserved    uint32 `c:"reserved"`
}

// RSSCaps is struct ib_uverbs_rss_caps.
type RSSCaps struct {
	_                          structs.HostLayout
	SupportedQPTs              uint32 `c:"supported_qpts"`
	MaxRWQIndirectionTables    uint32 `c:"max_rwq_indirection_tables"`
	MaxRWQIndirectionTableSize uint32 `c:"max_rwq_indirection_table_size"`
	Reserved                   uint32 `c:"reserved"`
}

// TMCaps is struct ib_uverbs_tm_caps.
type TMCaps struct {
	_              structs.HostLayout
	MaxRndvHdrSize uint32 `c:"max_rndv_hdr_size"`
	MaxNumTags     uint32 `c:"max_num_tags"`
	Flags          uint32 `c:"flags"`
	MaxOps         uint32 `c:"max_ops"`
	MaxSGE         uint32 `c:"max_sge"`
	Reserved       uint32 `c:"reserved"`
}

// CQModerationCaps is struct ib_uverbs_cq_moderation_caps.
type CQModerationCaps struct {
	_                     structs.HostLayout
	MaxCQModerationCount  uint16 `c:"max_cq_moderation_count"`
	MaxCQModerationPeriod uint16 `c:"max_cq_moderation_period"`
	Reserved              uint32 `c:"reserved"`
}

// ExQueryDeviceResp is struct ib_uverbs_ex_query_device_resp.
type ExQueryDeviceResp struct {
	_                structs.HostLayout
	Base             QueryDeviceResp  `c:"base"`
	CompMask         uint32           `c:"comp_mask"`
	ResponseLength   uint32           `c:"response_length"`
	ODPCaps          ODPCaps          `c:"odp_caps"`
	TimestampMask    uint64           `c:"timestamp_mask"`
	HCACoreClock     uint64           `c:"hca_core_clock"`
	DeviceCapFlagsEx uint64           `c:"device_cap_flags_ex"`
	RSSCaps          RSSCaps          `c:"rss_caps"`
	MaxWQTypeRQ      uint32           `c:"max_wq_type_rq"`
	RawPacketCaps    uint32           `c:"raw_packet_caps"`
	TMCaps           TMCaps           `c:"tm_caps"`
	CQModerationCaps CQModerationCaps `c:"cq_moderation_caps"`
	MaxDMSize        uint64           `c:"max_dm_size"`
	XRCODPCaps       uint32           `c:"xrc_odp_caps"`
	Reserved         uint32           `c:"reserved"`
}

// QueryPort is struct ib_uverbs_query_port.
type QueryPort struct {
	_        structs.HostLayout
	Response uint64   `c:"response"`
	PortNum  uint8    `c:"port_num"`
	Reserved [7]uint8 `c:"reserved"`
}

// QueryPortResp is struct ib_uverbs_query_port_resp.
type QueryPortResp struct {
	_             structs.HostLayout
	PortCapFlags  uint32 `c:"port_cap_flags"`
	MaxMsgSz      uint32 `c:"max_msg_sz"`
	BadPKeyCntr   uint32 `c:"bad_pkey_cntr"`
	QKeyViolCntr  uint32 `c:"qkey_viol_cntr"`
	GIDTblLen     uint32 `c:"gid_tbl_len"`
	PKeyTblLen    uint16 `c:"pkey_tbl_len"`
	LID           uint16 `c:"lid"`
	SMLID         uint16 `c:"sm_lid"`
	State         uint8  `c:"state"`
	MaxMTU        uint8  `c:"max_mtu"`
	ActiveMTU     uint8  `c:"active_mtu"`
	LMC           uint8  `c:"lmc"`
	MaxVLNum      uint8  `c:"max_vl_num"`
	SMSL          uint8  `c:"sm_sl"`
	SubnetTimeout uint8  `c:"subnet_timeout"`
	InitTypeReply uint8  `c:"init_type_reply"`
	ActiveWidth   uint8  `c:"active_width"`
	ActiveSpeed   uint8  `c:"active_speed"`
	PhysState     uint8  `c:"phys_state"`
	LinkLayer     uint8  `c:"link_layer"`
	Flags         uint8  `c:"flags"`
	Reserved      uint8  `c:"reserved"`
}
