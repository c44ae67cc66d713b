package netlink

// Netlink's own numbers: <linux/netlink.h>.
const (
	headerSize = 16 // struct nlmsghdr
	attrHeader = 4  // struct nlattr

	typeError = 2    // NLMSG_ERROR
	typeDone  = 3    // NLMSG_DONE
	typeMin   = 0x10 // NLMSG_MIN_TYPE

	flagRequest = 0x1   // NLM_F_REQUEST
	flagMulti   = 0x2   // NLM_F_MULTI
	flagAck     = 0x4   // NLM_F_ACK
	flagDump    = 0x300 // NLM_F_DUMP
	flagCapped  = 0x100 // NLM_F_CAPPED
	flagTLVs    = 0x200 // NLM_F_ACK_TLVS

	errAttrMessage = 1 // NLMSGERR_ATTR_MSG

	attrTypeMask = 0x3fff // NLA_TYPE_MASK
)

// The rest is <rdma/rdma_netlink.h>; a test compares each with the header.

const clientNLDev = 5 // RDMA_NL_NLDEV

// Commands: enum rdma_nldev_command.
const (
	cmdGet           = 1  // RDMA_NLDEV_CMD_GET
	cmdSet           = 2  // RDMA_NLDEV_CMD_SET
	cmdNewLink       = 3  // RDMA_NLDEV_CMD_NEWLINK
	cmdDelLink       = 4  // RDMA_NLDEV_CMD_DELLINK
	cmdPortGet       = 5  // RDMA_NLDEV_CMD_PORT_GET
	cmdSysGet        = 6  // RDMA_NLDEV_CMD_SYS_GET
	cmdSysSet        = 7  // RDMA_NLDEV_CMD_SYS_SET
	cmdResGet        = 9  // RDMA_NLDEV_CMD_RES_GET
	cmdResQPGet      = 10 // RDMA_NLDEV_CMD_RES_QP_GET
	cmdResCMIDGet    = 11 // RDMA_NLDEV_CMD_RES_CM_ID_GET
	cmdResCQGet      = 12 // RDMA_NLDEV_CMD_RES_CQ_GET
	cmdResMRGet      = 13 // RDMA_NLDEV_CMD_RES_MR_GET
	cmdResPDGet      = 14 // RDMA_NLDEV_CMD_RES_PD_GET
	cmdGetChardev    = 15 // RDMA_NLDEV_CMD_GET_CHARDEV
	cmdStatSet       = 16 // RDMA_NLDEV_CMD_STAT_SET
	cmdStatGet       = 17 // RDMA_NLDEV_CMD_STAT_GET
	cmdStatDel       = 18 // RDMA_NLDEV_CMD_STAT_DEL
	cmdResCtxGet     = 22 // RDMA_NLDEV_CMD_RES_CTX_GET
	cmdResSRQGet     = 23 // RDMA_NLDEV_CMD_RES_SRQ_GET
	cmdStatGetStatus = 24 // RDMA_NLDEV_CMD_STAT_GET_STATUS

	// In no header of Debian 12.
	cmdNewDev       = 26 // RDMA_NLDEV_CMD_NEWDEV
	cmdDelDev       = 27 // RDMA_NLDEV_CMD_DELDEV
	cmdFRMRPoolsSet = 30 // RDMA_NLDEV_CMD_FRMR_POOLS_SET
)

// Attributes: enum rdma_nldev_attr.
const (
	attrDevIndex       = 1  // RDMA_NLDEV_ATTR_DEV_INDEX
	attrDevName        = 2  // RDMA_NLDEV_ATTR_DEV_NAME
	attrPortIndex      = 3  // RDMA_NLDEV_ATTR_PORT_INDEX
	attrCapFlags       = 4  // RDMA_NLDEV_ATTR_CAP_FLAGS
	attrFWVersion      = 5  // RDMA_NLDEV_ATTR_FW_VERSION
	attrNodeGUID       = 6  // RDMA_NLDEV_ATTR_NODE_GUID
	attrSysImageGUID   = 7  // RDMA_NLDEV_ATTR_SYS_IMAGE_GUID
	attrPortState      = 12 // RDMA_NLDEV_ATTR_PORT_STATE
	attrPortPhysState  = 13 // RDMA_NLDEV_ATTR_PORT_PHYS_STATE
	attrNodeType       = 14 // RDMA_NLDEV_ATTR_DEV_NODE_TYPE
	attrSummary        = 15 // RDMA_NLDEV_ATTR_RES_SUMMARY
	attrSummaryEntry   = 16 // RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY
	attrSummaryName    = 17 // RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_NAME
	attrSummaryCurrent = 18 // RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_CURR
	attrQP             = 19 // RDMA_NLDEV_ATTR_RES_QP
	attrQPEntry        = 20 // RDMA_NLDEV_ATTR_RES_QP_ENTRY
	attrLQPN           = 21 // RDMA_NLDEV_ATTR_RES_LQPN
	attrRQPN           = 22 // RDMA_NLDEV_ATTR_RES_RQPN
	attrRQPSN          = 23 // RDMA_NLDEV_ATTR_RES_RQ_PSN
	attrSQPSN          = 24 // RDMA_NLDEV_ATTR_RES_SQ_PSN
	attrPathMig        = 25 // RDMA_NLDEV_ATTR_RES_PATH_MIG_STATE
	attrType           = 26 // RDMA_NLDEV_ATTR_RES_TYPE
	attrState          = 27 // RDMA_NLDEV_ATTR_RES_STATE
	attrPid            = 28 // RDMA_NLDEV_ATTR_RES_PID
	attrCMID           = 30 // RDMA_NLDEV_ATTR_RES_CM_ID
	attrCMIDEntry      = 31 // RDMA_NLDEV_ATTR_RES_CM_ID_ENTRY
	attrPS             = 32 // RDMA_NLDEV_ATTR_RES_PS
	attrSrcAddr        = 33 // RDMA_NLDEV_ATTR_RES_SRC_ADDR
	attrDstAddr        = 34 // RDMA_NLDEV_ATTR_RES_DST_ADDR
	attrCQ             = 35 // RDMA_NLDEV_ATTR_RES_CQ
	attrCQEntry        = 36 // RDMA_NLDEV_ATTR_RES_CQ_ENTRY
	attrCQE            = 37 // RDMA_NLDEV_ATTR_RES_CQE
	attrUsers          = 38 // RDMA_NLDEV_ATTR_RES_USECNT
	attrMR             = 40 // RDMA_NLDEV_ATTR_RES_MR
	attrMREntry        = 41 // RDMA_NLDEV_ATTR_RES_MR_ENTRY
	attrMRLen          = 45 // RDMA_NLDEV_ATTR_RES_MRLEN
	attrPD             = 46 // RDMA_NLDEV_ATTR_RES_PD
	attrPDEntry        = 47 // RDMA_NLDEV_ATTR_RES_PD_ENTRY
	attrNetDevIndex    = 50 // RDMA_NLDEV_ATTR_NDEV_INDEX
	attrNetDevName     = 51 // RDMA_NLDEV_ATTR_NDEV_NAME
	attrPDN            = 60 // RDMA_NLDEV_ATTR_RES_PDN
	attrCQN            = 61 // RDMA_NLDEV_ATTR_RES_CQN
	attrMRN            = 62 // RDMA_NLDEV_ATTR_RES_MRN
	attrCMIDN          = 63 // RDMA_NLDEV_ATTR_RES_CM_IDN
	attrCtxN           = 64 // RDMA_NLDEV_ATTR_RES_CTXN
	attrNetnsMode      = 66 // RDMA_NLDEV_SYS_ATTR_NETNS_MODE
	attrProtocol       = 67 // RDMA_NLDEV_ATTR_DEV_PROTOCOL
	attrChardevType    = 69 // RDMA_NLDEV_ATTR_CHARDEV_TYPE
	attrChardevName    = 70 // RDMA_NLDEV_ATTR_CHARDEV_NAME
	attrChardevABI     = 71 // RDMA_NLDEV_ATTR_CHARDEV_ABI
	attrChardev        = 72 // RDMA_NLDEV_ATTR_CHARDEV
	attrDriverID       = 73 // RDMA_NLDEV_ATTR_UVERBS_DRIVER_ID
	attrStatMode       = 74 // RDMA_NLDEV_ATTR_STAT_MODE
	attrStatRes        = 75 // RDMA_NLDEV_ATTR_STAT_RES
	attrStatCounterID  = 79 // RDMA_NLDEV_ATTR_STAT_COUNTER_ID
	attrCounters       = 80 // RDMA_NLDEV_ATTR_STAT_HWCOUNTERS
	attrCounterEntry   = 81 // RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY
	attrCounterName    = 82 // RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_NAME
	attrCounterValue   = 83 // RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_VALUE
	attrDim            = 84 // RDMA_NLDEV_ATTR_DEV_DIM
	attrCtx            = 86 // RDMA_NLDEV_ATTR_RES_CTX
	attrCtxEntry       = 87 // RDMA_NLDEV_ATTR_RES_CTX_ENTRY
	attrSRQ            = 88 // RDMA_NLDEV_ATTR_RES_SRQ
	attrSRQEntry       = 89 // RDMA_NLDEV_ATTR_RES_SRQ_ENTRY
	attrSRQN           = 90 // RDMA_NLDEV_ATTR_RES_SRQN
	attrCopyOnFork     = 93 // RDMA_NLDEV_SYS_ATTR_COPY_ON_FORK
	attrCounterIndex   = 94 // RDMA_NLDEV_ATTR_STAT_HWCOUNTER_INDEX
)
