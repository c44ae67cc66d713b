package abi

import "structs"

// This file: the rdma_cm device, <rdma/rdma_user_cm.h>. A command is one write():
// a CMCmdHeader and a request; the response goes to an address in the request.

// CMABIVersion is RDMA_USER_CM_ABI_VERSION.
const CMABIVersion = 4

// Commands.
const (
	CMCmdCreateID     = 0
	CMCmdDestroyID    = 1
	CMCmdBindIP       = 2
	CMCmdResolveIP    = 3
	CMCmdResolveRoute = 4
	CMCmdQueryRoute   = 5
	CMCmdConnect      = 6
	CMCmdListen       = 7
	CMCmdAccept       = 8
	CMCmdReject       = 9
	CMCmdDisconnect   = 10
	CMCmdInitQPAttr   = 11
	CMCmdGetEvent     = 12
	CMCmdGetOption    = 13
	CMCmdSetOption    = 14
	CMCmdNotify       = 15
	CMCmdJoinIPMcast  = 16
	CMCmdLeaveMcast   = 17
	CMCmdMigrateID    = 18
	CMCmdQuery        = 19
	CMCmdBind         = 20
	CMCmdResolveAddr  = 21
	CMCmdJoinMcast    = 22
	// Newer than the headers of Debian 12.
	CMCmdResolveIBService = 23
	CMCmdWriteCMEvent     = 24
	NumCMCmd              = 25
)

// Port spaces: enum rdma_ucm_port_space.
const (
	PSIPoIB = 0x0002
	PSIB    = 0x013f
	PSTCP   = 0x0106
	PSUDP   = 0x0111
)

// Events: enum rdma_cm_event_type of <rdma/rdma_cma.h>.
const (
	CMEventAddrResolved    = 0
	CMEventAddrError       = 1
	CMEventRouteResolved   = 2
	CMEventRouteError      = 3
	CMEventConnectRequest  = 4
	CMEventConnectResponse = 5
	CMEventConnectError    = 6
	CMEventUnreachable     = 7
	CMEventRejected        = 8
	CMEventEstablished     = 9
	CMEventDisconnected    = 10
	CMEventDeviceRemoval   = 11
	CMEventMulticastJoin   = 12
	CMEventMulticastError  = 13
	CMEventAddrChange      = 14
	CMEventTimewaitExit    = 15
	CMEventUser            = 18 // written by a program, as is the next
	CMEventInternal        = 19
)

// Options of SET_OPTION.
const (
	CMOptionID           = 0 // level
	CMOptionIB           = 1 // level
	CMOptionIDTOS        = 0
	CMOptionIDReuseAddr  = 1
	CMOptionIDAFOnly     = 2
	CMOptionIDAckTimeout = 3
	CMOptionIBPath       = 1
)

// CMMaxPrivateData is RDMA_MAX_PRIVATE_DATA.
const CMMaxPrivateData = 256

// CMCmdHeader is struct rdma_ucm_cmd_hdr.
type CMCmdHeader struct {
	_   structs.HostLayout
	Cmd uint32 `c:"cmd"`
	In  uint16 `c:"in"`
	Out uint16 `c:"out"`
}

// CMCreateID is struct rdma_ucm_create_id.
type CMCreateID struct {
	_        structs.HostLayout
	UID      uint64   `c:"uid"`
	Response uint64   `c:"response"`
	PS       uint16   `c:"ps"`
	QPType   uint8    `c:"qp_type"`
	Reserved [5]uint8 `c:"reserved"`
}

// CMCreateIDResp is struct rdma_ucm_create_id_resp.
type CMCreateIDResp struct {
	_  structs.HostLayout
	ID uint32 `c:"id"`
}

// CMDestroyID is struct rdma_ucm_destroy_id; LEAVE_MCAST has it too.
type CMDestroyID struct {
	_        structs.HostLayout
	Response uint64 `c:"response"`
	ID       uint32 `c:"id"`
	Reserved uint32 `c:"reserved"`
}

// CMDestroyIDResp is struct rdma_ucm_destroy_id_resp.
type CMDestroyIDResp struct {
	_              structs.HostLayout
	EventsReported uint32 `c:"events_reported"`
}

// CMBindIP is struct rdma_ucm_bind_ip.
type CMBindIP struct {
	_        structs.HostLayout
	Response uint64    `c:"response"`
	Addr     [28]uint8 `c:"addr"` // struct sockaddr_in6, or the sockaddr_in that fits into it
	ID       uint32    `c:"id"`
}

// CMResolveIP is struct rdma_ucm_resolve_ip.
type CMResolveIP struct {
	_         structs.HostLayout
	SrcAddr   [28]uint8 `c:"src_addr"`
	DstAddr   [28]uint8 `c:"dst_addr"`
	ID        uint32    `c:"id"`
	TimeoutMS uint32    `c:"timeout_ms"`
}

// CMResolveRoute is struct rdma_ucm_resolve_route.
type CMResolveRoute struct {
	_         structs.HostLayout
	ID        uint32 `c:"id"`
	TimeoutMS uint32 `c:"timeout_ms"`
}

// CMQuery is struct rdma_ucm_query.
type CMQuery struct {
	_        structs.HostLayout
	Response uint64 `c:"response"`
	ID       uint32 `c:"id"`
	Option   uint32 `c:"option"`
}

// UserPathRec is struct ib_user_path_rec of <rdma/ib_user_sa.h>.
type UserPathRec struct {
	_                      structs.HostLayout
	DGID                   [16]uint8 `c:"dgid"`
	SGID                   [16]uint8 `c:"sgid"`
	DLID                   uint16    `c:"dlid"`
	SLID                   uint16    `c:"slid"`
	RawTraffic             uint32    `c:"raw_traffic"`
	FlowLabel              uint32    `c:"flow_label"` // big endian
	Reversible             uint32    `c:"reversible"`
	MTU                    uint32    `c:"mtu"`
	PKey                   uint16    `c:"pkey"` // big endian
	HopLimit               uint8     `c:"hop_limit"`
	TrafficClass           uint8     `c:"traffic_class"`
	NumbPath               uint8     `c:"numb_path"`
	SL                     uint8     `c:"sl"`
	MTUSelector            uint8     `c:"mtu_selector"`
	RateSelector           uint8     `c:"rate_selector"`
	Rate                   uint8     `c:"rate"`
	PacketLifeTimeSelector uint8     `c:"packet_life_time_selector"`
	PacketLifeTime         uint8     `c:"packet_life_time"`
	Preference             uint8     `c:"preference"`
}

// CMQueryRouteResp is struct rdma_ucm_query_route_resp.
type CMQueryRouteResp struct {
	_          structs.HostLayout
	NodeGUID   uint64      `c:"node_guid"` // big endian
	IBRoute    UserPathRec `c:"ib_route[0]"`
	IBRouteAlt UserPathRec `c:"ib_route[1]"`
	SrcAddr    [28]uint8   `c:"src_addr"`
	DstAddr    [28]uint8   `c:"dst_addr"`
	NumPaths   uint32      `c:"num_paths"`
	PortNum    uint8       `c:"port_num"`
	Reserved   [3]uint8    `c:"reserved"`
	IBDevIndex uint32      `c:"ibdev_index"`
	Reserved1  uint32      `c:"reserved1"`
}

// CMConnParam is struct rdma_ucm_conn_param.
type CMConnParam struct {
	_                  structs.HostLayout
	QPNum              uint32                  `c:"qp_num"`
	QKey               uint32                  `c:"qkey"`
	PrivateData        [CMMaxPrivateData]uint8 `c:"private_data"`
	PrivateDataLen     uint8                   `c:"private_data_len"`
	SRQ                uint8                   `c:"srq"`
	ResponderResources uint8                   `c:"responder_resources"`
	InitiatorDepth     uint8                   `c:"initiator_depth"`
	FlowControl        uint8                   `c:"flow_control"`
	RetryCount         uint8                   `c:"retry_count"`
	RNRRetryCount      uint8                   `c:"rnr_retry_count"`
	Valid              uint8                   `c:"valid"`
}

// CMUDParam is struct rdma_ucm_ud_param.
type CMUDParam struct {
	_              structs.HostLayout
	QPNum          uint32                  `c:"qp_num"`
	QKey           uint32                  `c:"qkey"`
	AHAttr         AHAttr                  `c:"ah_attr"`
	PrivateData    [CMMaxPrivateData]uint8 `c:"private_data"`
	PrivateDataLen uint8                   `c:"private_data_len"`
	Reserved       [7]uint8                `c:"reserved"`
}

// CMConnect is struct rdma_ucm_connect.
type CMConnect struct {
	_         structs.HostLayout
	ConnParam CMConnParam `c:"conn_param"`
	ID        uint32      `c:"id"`
	Reserved  uint32      `c:"reserved"`
	ECEVendor uint32      `c:"ece.vendor_id"`
	ECEMod    uint32      `c:"ece.attr_mod"`
}

// CMListen is struct rdma_ucm_listen.
type CMListen struct {
	_       structs.HostLayout
	ID      uint32 `c:"id"`
	Backlog uint32 `c:"backlog"`
}

// CMAccept is struct rdma_ucm_accept.
type CMAccept struct {
	_         structs.HostLayout
	UID       uint64      `c:"uid"`
	ConnParam CMConnParam `c:"conn_param"`
	ID        uint32      `c:"id"`
	Reserved  uint32      `c:"reserved"`
	ECEVendor uint32      `c:"ece.vendor_id"`
	ECEMod    uint32      `c:"ece.attr_mod"`
}

// CMReject is struct rdma_ucm_reject.
type CMReject struct {
	_              structs.HostLayout
	ID             uint32                  `c:"id"`
	PrivateDataLen uint8                   `c:"private_data_len"`
	Reason         uint8                   `c:"reason"`
	Reserved       [2]uint8                `c:"reserved"`
	PrivateData    [CMMaxPrivateData]uint8 `c:"private_data"`
}

// CMDisconnect is struct rdma_ucm_disconnect.
type CMDisconnect struct {
	_  structs.HostLayout
	ID uint32 `c:"id"`
}

// CMInitQPAttr is struct rdma_ucm_init_qp_attr.
type CMInitQPAttr struct {
	_        structs.HostLayout
	Response uint64 `c:"response"`
	ID       uint32 `c:"id"`
	QPState  uint32 `c:"qp_state"`
}

// QPAttr is struct ib_uverbs_qp_attr.
type QPAttr struct {
	_                structs.HostLayout
	QPAttrMask       uint32   `c:"qp_attr_mask"`
	QPState          uint32   `c:"qp_state"`
	CurQPState       uint32   `c:"cur_qp_state"`
	PathMTU          uint32   `c:"path_mtu"`
	PathMigState     uint32   `c:"path_mig_state"`
	QKey             uint32   `c:"qkey"`
	RQPSN            uint32   `c:"rq_psn"`
	SQPSN            uint32   `c:"sq_psn"`
	DestQPNum        uint32   `c:"dest_qp_num"`
	QPAccessFlags    uint32   `c:"qp_access_flags"`
	AHAttr           AHAttr   `c:"ah_attr"`
	AltAHAttr        AHAttr   `c:"alt_ah_attr"`
	MaxSendWR        uint32   `c:"max_send_wr"`
	MaxRecvWR        uint32   `c:"max_recv_wr"`
	MaxSendSGE       uint32   `c:"max_send_sge"`
	MaxRecvSGE       uint32   `c:"max_recv_sge"`
	MaxInlineData    uint32   `c:"max_inline_data"`
	PKeyIndex        uint16   `c:"pkey_index"`
	AltPKeyIndex     uint16   `c:"alt_pkey_index"`
	EnSQDAsyncNotify uint8    `c:"en_sqd_async_notify"`
	SQDraining       uint8    `c:"sq_draining"`
	MaxRDAtomic      uint8    `c:"max_rd_atomic"`
	MaxDestRDAtomic  uint8    `c:"max_dest_rd_atomic"`
	MinRNRTimer      uint8    `c:"min_rnr_timer"`
	PortNum          uint8    `c:"port_num"`
	Timeout          uint8    `c:"timeout"`
	RetryCnt         uint8    `c:"retry_cnt"`
	RNRRetry         uint8    `c:"rnr_retry"`
	AltPortNum       uint8    `c:"alt_port_num"`
	AltTimeout       uint8    `c:"alt_timeout"`
	Reserved         [5]uint8 `c:"reserved"`
}

// CMNotify is struct rdma_ucm_notify.
type CMNotify struct {
	_     structs.HostLayout
	ID    uint32 `c:"id"`
	Event uint32 `c:"event"`
}

// CMJoinIPMcast is struct rdma_ucm_join_ip_mcast.
type CMJoinIPMcast struct {
	_        structs.HostLayout
	Response uint64    `c:"response"`
	UID      uint64    `c:"uid"`
	Addr     [28]uint8 `c:"addr"`
	ID       uint32    `c:"id"`
}

// CMGetEvent is struct rdma_ucm_get_event.
type CMGetEvent struct {
	_        structs.HostLayout
	Response uint64 `c:"response"`
}

// CMEventResp is struct rdma_ucm_event_resp. Param holds a CMConnParam or a
// CMUDParam.
type CMEventResp struct {
	_         structs.HostLayout
	UID       uint64     `c:"uid"`
	ID        uint32     `c:"id"`
	Event     uint32     `c:"event"`
	Status    uint32     `c:"status"`
	Param     [304]uint8 `c:"param"`
	Reserved  uint32     `c:"reserved"`
	ECEVendor uint32     `c:"ece.vendor_id"`
	ECEMod    uint32     `c:"ece.attr_mod"`
}

// CMWriteCMEvent is struct rdma_ucm_write_cm_event, which headers have since Linux 6.17.
type CMWriteCMEvent struct {
	_        structs.HostLayout
	ID       uint32     `c:"id"`
	Reserved uint32     `c:"reserved"`
	Event    uint32     `c:"event"`
	Status   uint32     `c:"status"`
	Param    [304]uint8 `c:"param"` // the first 8 are the program's argument
}

// CMSetOption is struct rdma_ucm_set_option.
type CMSetOption struct {
	_       structs.HostLayout
	OptVal  uint64 `c:"optval"` // an address; the shim sends what is there behind the command
	ID      uint32 `c:"id"`
	Level   uint32 `c:"level"`
	OptName uint32 `c:"optname"`
	OptLen  uint32 `c:"optlen"`
}

// CMMigrateID is struct rdma_ucm_migrate_id.
type CMMigrateID struct {
	_        structs.HostLayout
	Response uint64 `c:"response"`
	ID       uint32 `c:"id"`
	FD       uint32 `c:"fd"` // of the channel that the id is on; the shim sends our name for it
}

// CMMigrateResp is struct rdma_ucm_migrate_resp.
type CMMigrateResp struct {
	_              structs.HostLayout
	EventsReported uint32 `c:"events_reported"`
}

// What QUERY can ask: enum of RDMA_USER_CM_QUERY_….
const (
	CMQueryAddr = 0
	CMQueryPath = 1
	CMQueryGID  = 2
)

// CMStorage is struct __kernel_sockaddr_storage.
type CMStorage = [128]uint8

// CMBind is struct rdma_ucm_bind.
type CMBind struct {
	_        structs.HostLayout
	ID       uint32    `c:"id"`
	AddrSize uint16    `c:"addr_size"`
	Reserved uint16    `c:"reserved"`
	Addr     CMStorage `c:"addr"`
}

// CMResolveAddr is struct rdma_ucm_resolve_addr.
type CMResolveAddr struct {
	_         structs.HostLayout
	ID        uint32    `c:"id"`
	TimeoutMS uint32    `c:"timeout_ms"`
	SrcSize   uint16    `c:"src_size"`
	DstSize   uint16    `c:"dst_size"`
	Reserved  uint32    `c:"reserved"`
	SrcAddr   CMStorage `c:"src_addr"`
	DstAddr   CMStorage `c:"dst_addr"`
}

// CMQueryAddrResp is struct rdma_ucm_query_addr_resp.
type CMQueryAddrResp struct {
	_          structs.HostLayout
	NodeGUID   uint64    `c:"node_guid"`
	PortNum    uint8     `c:"port_num"`
	Reserved   uint8     `c:"reserved"`
	PKey       uint16    `c:"pkey"`
	SrcSize    uint16    `c:"src_size"`
	DstSize    uint16    `c:"dst_size"`
	SrcAddr    CMStorage `c:"src_addr"`
	DstAddr    CMStorage `c:"dst_addr"`
	IBDevIndex uint32    `c:"ibdev_index"`
	Reserved1  uint32    `c:"reserved1"`
}

// CMQueryPathResp is struct rdma_ucm_query_path_resp with one path behind it.
type CMQueryPathResp struct {
	_         structs.HostLayout
	NumPaths  uint32
	Reserved  uint32
	Flags     uint32 // of struct ib_path_rec_data
	Reserved2 uint32
	PathRec   [64]uint8 // as a subnet administrator writes it
}

// CMJoinMcast is struct rdma_ucm_join_mcast.
type CMJoinMcast struct {
	_         structs.HostLayout
	Response  uint64    `c:"response"`
	UID       uint64    `c:"uid"`
	ID        uint32    `c:"id"`
	AddrSize  uint16    `c:"addr_size"`
	JoinFlags uint16    `c:"join_flags"`
	Addr      CMStorage `c:"addr"`
}
