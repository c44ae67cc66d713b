package abi

import "structs"

// This file: the two headers that every command starts with, and the two
// kinds of event a program reads back.

// CmdHeader is struct ib_uverbs_cmd_hdr.
type CmdHeader struct {
	_        structs.HostLayout
	Command  uint32 `c:"command"`
	InWords  uint16 `c:"in_words"`
	OutWords uint16 `c:"out_words"`
}

// ExCmdHeader is struct ib_uverbs_ex_cmd_hdr.
type ExCmdHeader struct {
	_                structs.HostLayout
	Response         uint64 `c:"response"`
	ProviderInWords  uint16 `c:"provider_in_words"`
	ProviderOutWords uint16 `c:"provider_out_words"`
	Reserved         uint32 `c:"cmd_hdr_reserved"`
}

// AsyncEvent is struct ib_uverbs_async_event_desc.
type AsyncEvent struct {
	_         structs.HostLayout
	Element   uint64 `c:"element"`
	EventType uint32 `c:"event_type"`
	Reserved  uint32 `c:"reserved"`
}

// CompEvent is struct ib_uverbs_comp_event_desc.
type CompEvent struct {
	_        structs.HostLayout
	CQHandle uint64 `c:"cq_handle"`
}
