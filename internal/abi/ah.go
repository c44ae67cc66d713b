package abi

import "structs"

// This file: address handles and multicast.

// GlobalRoute is struct ib_uverbs_global_route.
type GlobalRoute struct {
	_            structs.HostLayout
	DGID         [16]uint8 `c:"dgid"`
	FlowLabel    uint32    `c:"flow_label"`
	SGIDIndex    uint8     `c:"sgid_index"`
	HopLimit     uint8     `c:"hop_limit"`
	TrafficClass uint8     `c:"traffic_class"`
	Reserved     uint8     `c:"reserved"`
}

// AHAttr is struct ib_uverbs_ah_attr.
type AHAttr struct {
	_           structs.HostLayout
	GRH         GlobalRoute `c:"grh"`
	DLID        uint16      `c:"dlid"`
	SL          uint8       `c:"sl"`
	SrcPathBits uint8       `c:"src_path_bits"`
	StaticRate  uint8       `c:"static_rate"`
	IsGlobal    uint8       `c:"is_global"`
	PortNum     uint8       `c:"port_num"`
	Reserved    uint8       `c:"reserved"`
}

// CreateAH is struct ib_uverbs_create_ah.
type CreateAH struct {
	_          structs.HostLayout
	Response   uint64 `c:"response"`
	UserHandle uint64 `c:"user_handle"`
	PDHandle   uint32 `c:"pd_handle"`
	Reserved   uint32 `c:"reserved"`
	Attr       AHAttr `c:"attr"`
}

// CreateAHResp is struct ib_uverbs_create_ah_resp.
type CreateAHResp struct {
	_        structs.HostLayout
	AHHandle uint32 `c:"ah_handle"`
}

// DestroyAH is struct ib_uverbs_destroy_ah.
type DestroyAH struct {
	_        structs.HostLayout
	AHHandle uint32 `c:"ah_handle"`
}

// AttachMcast is struct ib_uverbs_attach_mcast.
type AttachMcast struct {
	_        structs.HostLayout
	GID      [16]uint8 `c:"gid"`
	QPHandle uint32    `c:"qp_handle"`
	MLID     uint16    `c:"mlid"`
	Reserved uint16    `c:"reserved"`
}
