package abi

import "structs"

// This file: protection domains, memory regions and memory windows.

// AllocPD is struct ib_uverbs_alloc_pd.
type AllocPD struct {
	_        structs.HostLayout
	Response uint64 `c:"response"`
}

// AllocPDResp is struct ib_uverbs_alloc_pd_resp.
type AllocPDResp struct {
	_        structs.HostLayout
	PDHandle uint32 `c:"pd_handle"`
}

// DeallocPD is struct ib_uverbs_dealloc_pd.
type DeallocPD struct {
	_        structs.HostLayout
	PDHandle uint32 `c:"pd_handle"`
}

// RegMR is struct ib_uverbs_reg_mr.
type RegMR struct {
	_           structs.HostLayout
	Response    uint64 `c:"response"`
	Start       uint64 `c:"start"`
	Length      uint64 `c:"length"`
	HCAVA       uint64 `c:"hca_va"`
	PDHandle    uint32 `c:"pd_handle"`
	AccessFlags uint32 `c:"access_flags"`
}

// RegMRResp is struct ib_uverbs_reg_mr_resp.
type RegMRResp struct {
	_        structs.HostLayout
	MRHandle uint32 `c:"mr_handle"`
	LKey     uint32 `c:"lkey"`
	RKey     uint32 `c:"rkey"`
}

// DeregMR is struct ib_uverbs_dereg_mr.
type DeregMR struct {
	_        structs.HostLayout
	MRHandle uint32 `c:"mr_handle"`
}

// AllocMW is struct ib_uverbs_alloc_mw.
type AllocMW struct {
	_        structs.HostLayout
	Response uint64   `c:"response"`
	PDHandle uint32   `c:"pd_handle"`
	MWType   uint8    `c:"mw_type"`
	Reserved [3]uint8 `c:"reserved"`
}

// AllocMWResp is struct ib_uverbs_alloc_mw_resp.
type AllocMWResp struct {
	_        structs.HostLayout
	MWHandle uint32 `c:"mw_handle"`
	RKey     uint32 `c:"rkey"`
}

// DeallocMW is struct ib_uverbs_dealloc_mw.
type DeallocMW struct {
	_        structs.HostLayout
	MWHandle uint32 `c:"mw_handle"`
}
