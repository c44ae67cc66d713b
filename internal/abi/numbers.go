package abi

// VerbsABIVersion is IB_USER_VERBS_ABI_VERSION, the content of
// class/infiniband_verbs/abi_version.
const VerbsABIVersion = 6

// RxeABIVersion is RXE_UVERBS_ABI_VERSION, the content of uverbs0/abi_version.
const RxeABIVersion = 2

// The device nodes, as fstat shows them: uverbs0, and rdma_cm, which is a miscellaneous
// device.
const (
	UverbsMajor = 231
	UverbsMinor = 192
	CMMajor     = 10
	CMMinor     = 122
)

const (
	// CommandMask is IB_USER_VERBS_CMD_COMMAND_MASK.
	CommandMask = 0xff
	// FlagExtended is IB_USER_VERBS_CMD_FLAG_EXTENDED.
	FlagExtended = 0x80000000
)

// enum ib_uverbs_write_cmds.
const (
	CmdGetContext        = 0  // IB_USER_VERBS_CMD_GET_CONTEXT
	CmdQueryDevice       = 1  // IB_USER_VERBS_CMD_QUERY_DEVICE
	CmdQueryPort         = 2  // IB_USER_VERBS_CMD_QUERY_PORT
	CmdAllocPD           = 3  // IB_USER_VERBS_CMD_ALLOC_PD
	CmdDeallocPD         = 4  // IB_USER_VERBS_CMD_DEALLOC_PD
	CmdCreateAH          = 5  // IB_USER_VERBS_CMD_CREATE_AH
	CmdModifyAH          = 6  // IB_USER_VERBS_CMD_MODIFY_AH
	CmdQueryAH           = 7  // IB_USER_VERBS_CMD_QUERY_AH
	CmdDestroyAH         = 8  // IB_USER_VERBS_CMD_DESTROY_AH
	CmdRegMR             = 9  // IB_USER_VERBS_CMD_REG_MR
	CmdRegSMR            = 10 // IB_USER_VERBS_CMD_REG_SMR
	CmdReregMR           = 11 // IB_USER_VERBS_CMD_REREG_MR
	CmdQueryMR           = 12 // IB_USER_VERBS_CMD_QUERY_MR
	CmdDeregMR           = 13 // IB_USER_VERBS_CMD_DEREG_MR
	CmdAllocMW           = 14 // IB_USER_VERBS_CMD_ALLOC_MW
	CmdBindMW            = 15 // IB_USER_VERBS_CMD_BIND_MW
	CmdDeallocMW         = 16 // IB_USER_VERBS_CMD_DEALLOC_MW
	CmdCreateCompChannel = 17 // IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL
	CmdCreateCQ          = 18 // IB_USER_VERBS_CMD_CREATE_CQ
	CmdResizeCQ          = 19 // IB_USER_VERBS_CMD_RESIZE_CQ
	CmdDestroyCQ         = 20 // IB_USER_VERBS_CMD_DESTROY_CQ
	CmdPollCQ            = 21 // IB_USER_VERBS_CMD_POLL_CQ
	CmdPeekCQ            = 22 // IB_USER_VERBS_CMD_PEEK_CQ
	CmdReqNotifyCQ       = 23 // IB_USER_VERBS_CMD_REQ_NOTIFY_CQ
	CmdCreateQP          = 24 // IB_USER_VERBS_CMD_CREATE_QP
	CmdQueryQP           = 25 // IB_USER_VERBS_CMD_QUERY_QP
	CmdModifyQP          = 26 // IB_USER_VERBS_CMD_MODIFY_QP
	CmdDestroyQP         = 27 // IB_USER_VERBS_CMD_DESTROY_QP
	CmdPostSend          = 28 // IB_USER_VERBS_CMD_POST_SEND
	CmdPostRecv          = 29 // IB_USER_VERBS_CMD_POST_RECV
	CmdAttachMcast       = 30 // IB_USER_VERBS_CMD_ATTACH_MCAST
	CmdDetachMcast       = 31 // IB_USER_VERBS_CMD_DETACH_MCAST
	CmdCreateSRQ         = 32 // IB_USER_VERBS_CMD_CREATE_SRQ
	CmdModifySRQ         = 33 // IB_USER_VERBS_CMD_MODIFY_SRQ
	CmdQuerySRQ          = 34 // IB_USER_VERBS_CMD_QUERY_SRQ
	CmdDestroySRQ        = 35 // IB_USER_VERBS_CMD_DESTROY_SRQ
	CmdPostSRQRecv       = 36 // IB_USER_VERBS_CMD_POST_SRQ_RECV
	CmdOpenXRCD          = 37 // IB_USER_VERBS_CMD_OPEN_XRCD
	CmdCloseXRCD         = 38 // IB_USER_VERBS_CMD_CLOSE_XRCD
	CmdCreateXSRQ        = 39 // IB_USER_VERBS_CMD_CREATE_XSRQ
	CmdOpenQP            = 40 // IB_USER_VERBS_CMD_OPEN_QP
)

// The extended commands; each is sent with FlagExtended.
const (
	ExCmdQueryDevice      = CmdQueryDevice // IB_USER_VERBS_EX_CMD_QUERY_DEVICE
	ExCmdCreateCQ         = CmdCreateCQ    // IB_USER_VERBS_EX_CMD_CREATE_CQ
	ExCmdCreateQP         = CmdCreateQP    // IB_USER_VERBS_EX_CMD_CREATE_QP
	ExCmdModifyQP         = CmdModifyQP    // IB_USER_VERBS_EX_CMD_MODIFY_QP
	ExCmdCreateFlow       = 50             // IB_USER_VERBS_EX_CMD_CREATE_FLOW
	ExCmdDestroyFlow      = 51             // IB_USER_VERBS_EX_CMD_DESTROY_FLOW
	ExCmdCreateWQ         = 52             // IB_USER_VERBS_EX_CMD_CREATE_WQ
	ExCmdModifyWQ         = 53             // IB_USER_VERBS_EX_CMD_MODIFY_WQ
	ExCmdDestroyWQ        = 54             // IB_USER_VERBS_EX_CMD_DESTROY_WQ
	ExCmdCreateRWQIndTbl  = 55             // IB_USER_VERBS_EX_CMD_CREATE_RWQ_IND_TBL
	ExCmdDestroyRWQIndTbl = 56             // IB_USER_VERBS_EX_CMD_DESTROY_RWQ_IND_TBL
	ExCmdModifyCQ         = 57             // IB_USER_VERBS_EX_CMD_MODIFY_CQ
)

// The kernel's tables end after these; a number beyond is unknown even to it.
const (
	NumCmd   = CmdOpenQP + 1
	NumExCmd = ExCmdModifyCQ + 1
)

// enum ib_qp_type.
const (
	QPTypeSMI       = 0  // IB_QPT_SMI
	QPTypeGSI       = 1  // IB_QPT_GSI
	QPTypeRC        = 2  // IB_QPT_RC
	QPTypeUC        = 3  // IB_QPT_UC
	QPTypeUD        = 4  // IB_QPT_UD
	QPTypeRawPacket = 8  // IB_QPT_RAW_PACKET
	QPTypeXRCIni    = 9  // IB_QPT_XRC_INI
	QPTypeXRCTgt    = 10 // IB_QPT_XRC_TGT
	QPTypeDriver    = 255
)

// enum ib_qp_state.
const (
	QPStateReset = iota // IB_QPS_RESET
	QPStateInit         // IB_QPS_INIT
	QPStateRTR          // IB_QPS_RTR
	QPStateRTS          // IB_QPS_RTS
	QPStateSQD          // IB_QPS_SQD
	QPStateSQE          // IB_QPS_SQE
	QPStateErr          // IB_QPS_ERR
)

// enum ib_qp_attr_mask.
const (
	QPMaskState            = 1 << 0  // IB_QP_STATE
	QPMaskCurState         = 1 << 1  // IB_QP_CUR_STATE
	QPMaskEnSQDAsyncNotify = 1 << 2  // IB_QP_EN_SQD_ASYNC_NOTIFY
	QPMaskAccessFlags      = 1 << 3  // IB_QP_ACCESS_FLAGS
	QPMaskPKeyIndex        = 1 << 4  // IB_QP_PKEY_INDEX
	QPMaskPort             = 1 << 5  // IB_QP_PORT
	QPMaskQKey             = 1 << 6  // IB_QP_QKEY
	QPMaskAV               = 1 << 7  // IB_QP_AV
	QPMaskPathMTU          = 1 << 8  // IB_QP_PATH_MTU
	QPMaskTimeout          = 1 << 9  // IB_QP_TIMEOUT
	QPMaskRetryCnt         = 1 << 10 // IB_QP_RETRY_CNT
	QPMaskRNRRetry         = 1 << 11 // IB_QP_RNR_RETRY
	QPMaskRQPSN            = 1 << 12 // IB_QP_RQ_PSN
	QPMaskMaxQPRDAtomic    = 1 << 13 // IB_QP_MAX_QP_RD_ATOMIC
	QPMaskAltPath          = 1 << 14 // IB_QP_ALT_PATH
	QPMaskMinRNRTimer      = 1 << 15 // IB_QP_MIN_RNR_TIMER
	QPMaskSQPSN            = 1 << 16 // IB_QP_SQ_PSN
	QPMaskMaxDestRDAtomic  = 1 << 17 // IB_QP_MAX_DEST_RD_ATOMIC
	QPMaskPathMigState     = 1 << 18 // IB_QP_PATH_MIG_STATE
	QPMaskCap              = 1 << 19 // IB_QP_CAP
	QPMaskDestQPN          = 1 << 20 // IB_QP_DEST_QPN
	QPMaskRateLimit        = 1 << 25 // IB_QP_RATE_LIMIT

	// QPMaskStandard is IB_QP_ATTR_STANDARD_BITS.
	QPMaskStandard = 1<<21 - 1
)

// enum ib_srq_attr_mask.
const (
	SRQMaskMaxWR = 1 << 0 // IB_SRQ_MAX_WR
	SRQMaskLimit = 1 << 1 // IB_SRQ_LIMIT
)

// enum ib_srq_type.
const (
	SRQTypeBasic = 0 // IB_SRQT_BASIC
	SRQTypeXRC   = 1 // IB_SRQT_XRC
	SRQTypeTM    = 2 // IB_SRQT_TM
)

// enum ib_mw_type.
const (
	MWType1 = 1 // IB_MW_TYPE_1
	MWType2 = 2 // IB_MW_TYPE_2
)

// enum ib_access_flags.
const (
	AccessLocalWrite      = 1 << 0 // IB_ACCESS_LOCAL_WRITE
	AccessRemoteWrite     = 1 << 1 // IB_ACCESS_REMOTE_WRITE
	AccessRemoteRead      = 1 << 2 // IB_ACCESS_REMOTE_READ
	AccessRemoteAtomic    = 1 << 3 // IB_ACCESS_REMOTE_ATOMIC
	AccessMWBind          = 1 << 4 // IB_ACCESS_MW_BIND
	AccessZeroBased       = 1 << 5 // IB_ACCESS_ZERO_BASED
	AccessOnDemand        = 1 << 6 // IB_ACCESS_ON_DEMAND
	AccessHugeTLB         = 1 << 7 // IB_ACCESS_HUGETLB
	AccessFlushGlobal     = 1 << 8 // IB_ACCESS_FLUSH_GLOBAL
	AccessFlushPersistent = 1 << 9 // IB_ACCESS_FLUSH_PERSISTENT

	AccessRelaxedOrdering = 1 << 20 // IB_ACCESS_RELAXED_ORDERING
	// AccessOptional is IB_ACCESS_OPTIONAL: a device ignores those it lacks.
	AccessOptional = 0x3ff00000
)

// enum ib_event_type.
const (
	EventCQErr            = iota // IB_EVENT_CQ_ERR
	EventQPFatal                 // IB_EVENT_QP_FATAL
	EventQPReqErr                // IB_EVENT_QP_REQ_ERR
	EventQPAccessErr             // IB_EVENT_QP_ACCESS_ERR
	EventCommEst                 // IB_EVENT_COMM_EST
	EventSQDrained               // IB_EVENT_SQ_DRAINED
	EventPathMig                 // IB_EVENT_PATH_MIG
	EventPathMigErr              // IB_EVENT_PATH_MIG_ERR
	EventDeviceFatal             // IB_EVENT_DEVICE_FATAL
	EventPortActive              // IB_EVENT_PORT_ACTIVE
	EventPortErr                 // IB_EVENT_PORT_ERR
	EventLIDChange               // IB_EVENT_LID_CHANGE
	EventPKeyChange              // IB_EVENT_PKEY_CHANGE
	EventSMChange                // IB_EVENT_SM_CHANGE
	EventSRQErr                  // IB_EVENT_SRQ_ERR
	EventSRQLimitReached         // IB_EVENT_SRQ_LIMIT_REACHED
	EventQPLastWQEReached        // IB_EVENT_QP_LAST_WQE_REACHED
	EventClientReregister        // IB_EVENT_CLIENT_REREGISTER
	EventGIDChange               // IB_EVENT_GID_CHANGE
)

// enum ib_uverbs_device_cap_flags, the ones this device has.
const (
	DeviceBadPKeyCntr     = 1 << 1  // IB_UVERBS_DEVICE_BAD_PKEY_CNTR
	DeviceBadQKeyCntr     = 1 << 2  // IB_UVERBS_DEVICE_BAD_QKEY_CNTR
	DeviceAutoPathMig     = 1 << 4  // IB_UVERBS_DEVICE_AUTO_PATH_MIG
	DeviceChangePhyPort   = 1 << 5  // IB_UVERBS_DEVICE_CHANGE_PHY_PORT
	DeviceUDAVPortEnforce = 1 << 6  // IB_UVERBS_DEVICE_UD_AV_PORT_ENFORCE
	DevicePortActiveEvent = 1 << 10 // IB_UVERBS_DEVICE_PORT_ACTIVE_EVENT
	DeviceSysImageGUID    = 1 << 11 // IB_UVERBS_DEVICE_SYS_IMAGE_GUID
	DeviceRCRNRNAKGen     = 1 << 12 // IB_UVERBS_DEVICE_RC_RNR_NAK_GEN
	DeviceSRQResize       = 1 << 13 // IB_UVERBS_DEVICE_SRQ_RESIZE
	DeviceMemWindow       = 1 << 17 // IB_UVERBS_DEVICE_MEM_WINDOW
	DeviceMemMgtExt       = 1 << 21 // IB_UVERBS_DEVICE_MEM_MGT_EXTENSIONS
	DeviceMemWindow2B     = 1 << 24 // IB_UVERBS_DEVICE_MEM_WINDOW_TYPE_2B
	DeviceFlushGlobal     = 1 << 38 // IB_UVERBS_DEVICE_FLUSH_GLOBAL
	DeviceFlushPersistent = 1 << 39 // IB_UVERBS_DEVICE_FLUSH_PERSISTENT
	DeviceAtomicWrite     = 1 << 40 // IB_UVERBS_DEVICE_ATOMIC_WRITE
)

// AtomicHCA is IB_ATOMIC_HCA of enum ib_atomic_cap.
const AtomicHCA = 1

// Port attributes: enum ib_port_state, ib_port_phys_state, ib_mtu,
// rdma_link_layer, ib_port_width, ib_port_speed.
const (
	PortDown          = 1 // IB_PORT_DOWN
	PortActive        = 4 // IB_PORT_ACTIVE
	PhysStateDisabled = 3 // IB_PORT_PHYS_STATE_DISABLED
	PhysStateLinkUp   = 5 // IB_PORT_PHYS_STATE_LINK_UP
	MTU4096           = 5 // IB_MTU_4096
	LinkLayerEthernet = 2 // IB_LINK_LAYER_ETHERNET
	Width4X           = 2 // IB_WIDTH_4X
	Width1X           = 1 // IB_WIDTH_1X
	SpeedSDR          = 1 // IB_SPEED_SDR
	SpeedEDR          = 32
)

// Port capability flags and query flags.
const (
	PortCapCM         = 1 << 16 // IB_UVERBS_PCF_CM_SUP
	PortCapIPBasedGID = 1 << 26 // IB_UVERBS_PCF_IP_BASED_GIDS
	QueryPortGRH      = 1       // IB_UVERBS_QPF_GRH_REQUIRED
)

// CreateQPMaskIndTable is IB_UVERBS_CREATE_QP_MASK_IND_TABLE.
const CreateQPMaskIndTable = 1

// QPCreateUserFlags are the create_flags that uverbs lets through to a driver.
const QPCreateUserFlags = 1<<1 | 1<<2 | 1<<3 | 1<<4 | 1<<8 | 1<<9 | 1<<10 | 1<<11
