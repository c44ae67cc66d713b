package abi

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// layouts pairs every Go struct with the C struct that it mirrors.
var layouts = map[string]any{
	"ib_uverbs_cmd_hdr":                  CmdHeader{},
	"ib_uverbs_ex_cmd_hdr":               ExCmdHeader{},
	"ib_uverbs_async_event_desc":         AsyncEvent{},
	"ib_uverbs_comp_event_desc":          CompEvent{},
	"ib_uverbs_get_context":              GetContext{},
	"ib_uverbs_get_context_resp":         GetContextResp{},
	"ib_uverbs_query_device":             QueryDevice{},
	"ib_uverbs_query_device_resp":        QueryDeviceResp{},
	"ib_uverbs_ex_query_device":          ExQueryDevice{},
	"ib_uverbs_odp_caps":                 ODPCaps{},
	"ib_uverbs_rss_caps":                 RSSCaps{},
	"ib_uverbs_tm_caps":                  TMCaps{},
	"ib_uverbs_cq_moderation_caps":       CQModerationCaps{},
	"ib_uverbs_ex_query_device_resp":     ExQueryDeviceResp{},
	"ib_uverbs_query_port":               QueryPort{},
	"ib_uverbs_query_port_resp":          QueryPortResp{},
	"ib_uverbs_alloc_pd":                 AllocPD{},
	"ib_uverbs_alloc_pd_resp":            AllocPDResp{},
	"ib_uverbs_dealloc_pd":               DeallocPD{},
	"ib_uverbs_reg_mr":                   RegMR{},
	"ib_uverbs_reg_mr_resp":              RegMRResp{},
	"ib_uverbs_dereg_mr":                 DeregMR{},
	"ib_uverbs_alloc_mw":                 AllocMW{},
	"ib_uverbs_alloc_mw_resp":            AllocMWResp{},
	"ib_uverbs_dealloc_mw":               DeallocMW{},
	"ib_uverbs_create_comp_channel":      CreateCompChannel{},
	"ib_uverbs_create_comp_channel_resp": CreateCompChannelResp{},
	"ib_uverbs_create_cq":                CreateCQ{},
	"ib_uverbs_ex_create_cq":             ExCreateCQ{},
	"ib_uverbs_create_cq_resp":           CreateCQResp{},
	"ib_uverbs_ex_create_cq_resp":        ExCreateCQResp{},
	"ib_uverbs_resize_cq":                ResizeCQ{},
	"ib_uverbs_resize_cq_resp":           ResizeCQResp{},
	"ib_uverbs_req_notify_cq":            ReqNotifyCQ{},
	"ib_uverbs_destroy_cq":               DestroyCQ{},
	"ib_uverbs_destroy_cq_resp":          DestroyCQResp{},
	"ib_uverbs_wc":                       WC{},
	"ib_uverbs_global_route":             GlobalRoute{},
	"ib_uverbs_ah_attr":                  AHAttr{},
	"ib_uverbs_create_ah":                CreateAH{},
	"ib_uverbs_create_ah_resp":           CreateAHResp{},
	"ib_uverbs_destroy_ah":               DestroyAH{},
	"ib_uverbs_attach_mcast":             AttachMcast{},
	"ib_uverbs_detach_mcast":             AttachMcast{},
	"ib_uverbs_create_qp":                CreateQP{},
	"ib_uverbs_ex_create_qp":             ExCreateQP{},
	"ib_uverbs_create_qp_resp":           CreateQPResp{},
	"ib_uverbs_ex_create_qp_resp":        ExCreateQPResp{},
	"ib_uverbs_qp_dest":                  QPDest{},
	"ib_uverbs_query_qp":                 QueryQP{},
	"ib_uverbs_query_qp_resp":            QueryQPResp{},
	"ib_uverbs_modify_qp":                ModifyQP{},
	"ib_uverbs_ex_modify_qp":             ExModifyQP{},
	"ib_uverbs_ex_modify_qp_resp":        ExModifyQPResp{},
	"ib_uverbs_destroy_qp":               DestroyQP{},
	"ib_uverbs_destroy_qp_resp":          DestroyQPResp{},
	"ib_uverbs_post_send":                PostSend{},
	"ib_uverbs_post_recv":                PostRecv{},
	"ib_uverbs_post_srq_recv":            PostSRQRecv{},
	"ib_uverbs_post_send_resp":           PostSendResp{},
	"ib_uverbs_create_srq":               CreateSRQ{},
	"ib_uverbs_create_xsrq":              CreateXSRQ{},
	"ib_uverbs_create_srq_resp":          CreateSRQResp{},
	"ib_uverbs_modify_srq":               ModifySRQ{},
	"ib_uverbs_query_srq":                QuerySRQ{},
	"ib_uverbs_query_srq_resp":           QuerySRQResp{},
	"ib_uverbs_destroy_srq":              DestroySRQ{},
	"ib_uverbs_destroy_srq_resp":         DestroySRQResp{},
	"mminfo":                             MMInfo{},
	"rxe_create_ah_resp":                 RxeCreateAHResp{},
	"rxe_create_cq_resp":                 RxeCreateCQResp{},
	"rxe_resize_cq_resp":                 RxeResizeCQResp{},
	"rxe_create_qp_resp":                 RxeCreateQPResp{},
	"rxe_create_srq_resp":                RxeCreateSRQResp{},
	"rxe_modify_srq_cmd":                 RxeModifySRQCmd{},
	"rdma_ucm_cmd_hdr":                   CMCmdHeader{},
	"rdma_ucm_create_id":                 CMCreateID{},
	"rdma_ucm_create_id_resp":            CMCreateIDResp{},
	"rdma_ucm_destroy_id":                CMDestroyID{},
	"rdma_ucm_destroy_id_resp":           CMDestroyIDResp{},
	"rdma_ucm_bind_ip":                   CMBindIP{},
	"rdma_ucm_resolve_ip":                CMResolveIP{},
	"rdma_ucm_resolve_route":             CMResolveRoute{},
	"rdma_ucm_query":                     CMQuery{},
	"ib_user_path_rec":                   UserPathRec{},
	"rdma_ucm_query_route_resp":          CMQueryRouteResp{},
	"rdma_ucm_conn_param":                CMConnParam{},
	"rdma_ucm_ud_param":                  CMUDParam{},
	"rdma_ucm_connect":                   CMConnect{},
	"rdma_ucm_listen":                    CMListen{},
	"rdma_ucm_accept":                    CMAccept{},
	"rdma_ucm_reject":                    CMReject{},
	"rdma_ucm_disconnect":                CMDisconnect{},
	"rdma_ucm_init_qp_attr":              CMInitQPAttr{},
	"ib_uverbs_qp_attr":                  QPAttr{},
	"rdma_ucm_notify":                    CMNotify{},
	"rdma_ucm_join_ip_mcast":             CMJoinIPMcast{},
	"rdma_ucm_get_event":                 CMGetEvent{},
	"rdma_ucm_event_resp":                CMEventResp{},
	"rdma_ucm_set_option":                CMSetOption{},
	"rdma_ucm_migrate_id":                CMMigrateID{},
	"rdma_ucm_migrate_resp":              CMMigrateResp{},
	"rdma_ucm_bind":                      CMBind{},
	"rdma_ucm_resolve_addr":              CMResolveAddr{},
	"rdma_ucm_query_addr_resp":           CMQueryAddrResp{},
	"rdma_ucm_join_mcast":                CMJoinMcast{},
}

// constants pairs C expressions with our numbers.
var constants = map[string]int64{
	"RDMA_USER_CM_ABI_VERSION":                 CMABIVersion,
	"RDMA_USER_CM_CMD_CREATE_ID":               CMCmdCreateID,
	"RDMA_USER_CM_CMD_GET_EVENT":               CMCmdGetEvent,
	"RDMA_USER_CM_CMD_MIGRATE_ID":              CMCmdMigrateID,
	"RDMA_USER_CM_CMD_JOIN_MCAST":              CMCmdJoinMcast,
	"RDMA_USER_CM_QUERY_PATH":                  CMQueryPath,
	"RDMA_USER_CM_QUERY_GID":                   CMQueryGID,
	"RDMA_PS_IPOIB":                            PSIPoIB,
	"RDMA_PS_IB":                               PSIB,
	"RDMA_PS_TCP":                              PSTCP,
	"RDMA_PS_UDP":                              PSUDP,
	"RDMA_OPTION_ID_TOS":                       CMOptionIDTOS,
	"RDMA_OPTION_ID_REUSEADDR":                 CMOptionIDReuseAddr,
	"RDMA_OPTION_ID_AFONLY":                    CMOptionIDAFOnly,
	"RDMA_OPTION_ID_ACK_TIMEOUT":               CMOptionIDAckTimeout,
	"RDMA_OPTION_IB_PATH":                      CMOptionIBPath,
	"RDMA_MAX_PRIVATE_DATA":                    CMMaxPrivateData,
	"IB_USER_VERBS_ABI_VERSION":                6,
	"IB_USER_VERBS_CMD_COMMAND_MASK":           CommandMask,
	"IB_USER_VERBS_CMD_FLAG_EXTENDED":          FlagExtended,
	"IB_USER_VERBS_CMD_GET_CONTEXT":            CmdGetContext,
	"IB_USER_VERBS_CMD_QUERY_DEVICE":           CmdQueryDevice,
	"IB_USER_VERBS_CMD_QUERY_PORT":             CmdQueryPort,
	"IB_USER_VERBS_CMD_ALLOC_PD":               CmdAllocPD,
	"IB_USER_VERBS_CMD_DEALLOC_PD":             CmdDeallocPD,
	"IB_USER_VERBS_CMD_CREATE_AH":              CmdCreateAH,
	"IB_USER_VERBS_CMD_MODIFY_AH":              CmdModifyAH,
	"IB_USER_VERBS_CMD_QUERY_AH":               CmdQueryAH,
	"IB_USER_VERBS_CMD_DESTROY_AH":             CmdDestroyAH,
	"IB_USER_VERBS_CMD_REG_MR":                 CmdRegMR,
	"IB_USER_VERBS_CMD_REG_SMR":                CmdRegSMR,
	"IB_USER_VERBS_CMD_REREG_MR":               CmdReregMR,
	"IB_USER_VERBS_CMD_QUERY_MR":               CmdQueryMR,
	"IB_USER_VERBS_CMD_DEREG_MR":               CmdDeregMR,
	"IB_USER_VERBS_CMD_ALLOC_MW":               CmdAllocMW,
	"IB_USER_VERBS_CMD_BIND_MW":                CmdBindMW,
	"IB_USER_VERBS_CMD_DEALLOC_MW":             CmdDeallocMW,
	"IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL":    CmdCreateCompChannel,
	"IB_USER_VERBS_CMD_CREATE_CQ":              CmdCreateCQ,
	"IB_USER_VERBS_CMD_RESIZE_CQ":              CmdResizeCQ,
	"IB_USER_VERBS_CMD_DESTROY_CQ":             CmdDestroyCQ,
	"IB_USER_VERBS_CMD_POLL_CQ":                CmdPollCQ,
	"IB_USER_VERBS_CMD_PEEK_CQ":                CmdPeekCQ,
	"IB_USER_VERBS_CMD_REQ_NOTIFY_CQ":          CmdReqNotifyCQ,
	"IB_USER_VERBS_CMD_CREATE_QP":              CmdCreateQP,
	"IB_USER_VERBS_CMD_QUERY_QP":               CmdQueryQP,
	"IB_USER_VERBS_CMD_MODIFY_QP":              CmdModifyQP,
	"IB_USER_VERBS_CMD_DESTROY_QP":             CmdDestroyQP,
	"IB_USER_VERBS_CMD_POST_SEND":              CmdPostSend,
	"IB_USER_VERBS_CMD_POST_RECV":              CmdPostRecv,
	"IB_USER_VERBS_CMD_ATTACH_MCAST":           CmdAttachMcast,
	"IB_USER_VERBS_CMD_DETACH_MCAST":           CmdDetachMcast,
	"IB_USER_VERBS_CMD_CREATE_SRQ":             CmdCreateSRQ,
	"IB_USER_VERBS_CMD_MODIFY_SRQ":             CmdModifySRQ,
	"IB_USER_VERBS_CMD_QUERY_SRQ":              CmdQuerySRQ,
	"IB_USER_VERBS_CMD_DESTROY_SRQ":            CmdDestroySRQ,
	"IB_USER_VERBS_CMD_POST_SRQ_RECV":          CmdPostSRQRecv,
	"IB_USER_VERBS_CMD_OPEN_XRCD":              CmdOpenXRCD,
	"IB_USER_VERBS_CMD_CLOSE_XRCD":             CmdCloseXRCD,
	"IB_USER_VERBS_CMD_CREATE_XSRQ":            CmdCreateXSRQ,
	"IB_USER_VERBS_CMD_OPEN_QP":                CmdOpenQP,
	"IB_USER_VERBS_EX_CMD_QUERY_DEVICE":        ExCmdQueryDevice,
	"IB_USER_VERBS_EX_CMD_CREATE_CQ":           ExCmdCreateCQ,
	"IB_USER_VERBS_EX_CMD_CREATE_QP":           ExCmdCreateQP,
	"IB_USER_VERBS_EX_CMD_MODIFY_QP":           ExCmdModifyQP,
	"IB_USER_VERBS_EX_CMD_CREATE_FLOW":         ExCmdCreateFlow,
	"IB_USER_VERBS_EX_CMD_DESTROY_FLOW":        ExCmdDestroyFlow,
	"IB_USER_VERBS_EX_CMD_CREATE_WQ":           ExCmdCreateWQ,
	"IB_USER_VERBS_EX_CMD_MODIFY_WQ":           ExCmdModifyWQ,
	"IB_USER_VERBS_EX_CMD_DESTROY_WQ":          ExCmdDestroyWQ,
	"IB_USER_VERBS_EX_CMD_CREATE_RWQ_IND_TBL":  ExCmdCreateRWQIndTbl,
	"IB_USER_VERBS_EX_CMD_DESTROY_RWQ_IND_TBL": ExCmdDestroyRWQIndTbl,
	"IB_USER_VERBS_EX_CMD_MODIFY_CQ":           ExCmdModifyCQ,
	"IBV_QPT_RC":                               QPTypeRC,
	"IBV_QPT_UC":                               QPTypeUC,
	"IBV_QPT_UD":                               QPTypeUD,
	"IBV_QPT_RAW_PACKET":                       QPTypeRawPacket,
	"IBV_QPT_XRC_SEND":                         QPTypeXRCIni,
	"IBV_QPT_XRC_RECV":                         QPTypeXRCTgt,
	"IBV_QPT_DRIVER":                           QPTypeDriver,
	"IBV_QPS_RESET":                            QPStateReset,
	"IBV_QPS_SQD":                              QPStateSQD,
	"IBV_QPS_ERR":                              QPStateErr,
	"IBV_QP_STATE":                             QPMaskState,
	"IBV_QP_CUR_STATE":                         QPMaskCurState,
	"IBV_QP_EN_SQD_ASYNC_NOTIFY":               QPMaskEnSQDAsyncNotify,
	"IBV_QP_ACCESS_FLAGS":                      QPMaskAccessFlags,
	"IBV_QP_PKEY_INDEX":                        QPMaskPKeyIndex,
	"IBV_QP_PORT":                              QPMaskPort,
	"IBV_QP_QKEY":                              QPMaskQKey,
	"IBV_QP_AV":                                QPMaskAV,
	"IBV_QP_PATH_MTU":                          QPMaskPathMTU,
	"IBV_QP_TIMEOUT":                           QPMaskTimeout,
	"IBV_QP_RETRY_CNT":                         QPMaskRetryCnt,
	"IBV_QP_RNR_RETRY":                         QPMaskRNRRetry,
	"IBV_QP_RQ_PSN":                            QPMaskRQPSN,
	"IBV_QP_MAX_QP_RD_ATOMIC":                  QPMaskMaxQPRDAtomic,
	"IBV_QP_ALT_PATH":                          QPMaskAltPath,
	"IBV_QP_MIN_RNR_TIMER":                     QPMaskMinRNRTimer,
	"IBV_QP_SQ_PSN":                            QPMaskSQPSN,
	"IBV_QP_MAX_DEST_RD_ATOMIC":                QPMaskMaxDestRDAtomic,
	"IBV_QP_PATH_MIG_STATE":                    QPMaskPathMigState,
	"IBV_QP_CAP":                               QPMaskCap,
	"IBV_QP_DEST_QPN":                          QPMaskDestQPN,
	"IBV_QP_RATE_LIMIT":                        QPMaskRateLimit,
	"IBV_SRQ_MAX_WR":                           SRQMaskMaxWR,
	"IBV_SRQ_LIMIT":                            SRQMaskLimit,
	"IBV_SRQT_BASIC":                           SRQTypeBasic,
	"IBV_SRQT_XRC":                             SRQTypeXRC,
	"IBV_SRQT_TM":                              SRQTypeTM,
	"IBV_MW_TYPE_1":                            MWType1,
	"IBV_MW_TYPE_2":                            MWType2,
	"IBV_ACCESS_LOCAL_WRITE":                   AccessLocalWrite,
	"IBV_ACCESS_REMOTE_WRITE":                  AccessRemoteWrite,
	"IBV_ACCESS_REMOTE_READ":                   AccessRemoteRead,
	"IBV_ACCESS_REMOTE_ATOMIC":                 AccessRemoteAtomic,
	"IBV_ACCESS_MW_BIND":                       AccessMWBind,
	"IBV_ACCESS_ZERO_BASED":                    AccessZeroBased,
	"IBV_ACCESS_ON_DEMAND":                     AccessOnDemand,
	"IBV_ACCESS_HUGETLB":                       AccessHugeTLB,
	"IBV_ACCESS_RELAXED_ORDERING":              AccessRelaxedOrdering,
	"IB_UVERBS_ACCESS_OPTIONAL_RANGE":          AccessOptional,
	"IBV_EVENT_CQ_ERR":                         EventCQErr,
	"IBV_EVENT_DEVICE_FATAL":                   EventDeviceFatal,
	"IBV_EVENT_SRQ_LIMIT_REACHED":              EventSRQLimitReached,
	"IBV_EVENT_QP_LAST_WQE_REACHED":            EventQPLastWQEReached,
	"IBV_EVENT_GID_CHANGE":                     EventGIDChange,
	"IB_UVERBS_DEVICE_BAD_PKEY_CNTR":           DeviceBadPKeyCntr,
	"IB_UVERBS_DEVICE_BAD_QKEY_CNTR":           DeviceBadQKeyCntr,
	"IB_UVERBS_DEVICE_AUTO_PATH_MIG":           DeviceAutoPathMig,
	"IB_UVERBS_DEVICE_CHANGE_PHY_PORT":         DeviceChangePhyPort,
	"IB_UVERBS_DEVICE_UD_AV_PORT_ENFORCE":      DeviceUDAVPortEnforce,
	"IB_UVERBS_DEVICE_PORT_ACTIVE_EVENT":       DevicePortActiveEvent,
	"IB_UVERBS_DEVICE_SYS_IMAGE_GUID":          DeviceSysImageGUID,
	"IB_UVERBS_DEVICE_RC_RNR_NAK_GEN":          DeviceRCRNRNAKGen,
	"IB_UVERBS_DEVICE_SRQ_RESIZE":              DeviceSRQResize,
	"IB_UVERBS_DEVICE_MEM_WINDOW":              DeviceMemWindow,
	"IB_UVERBS_DEVICE_MEM_MGT_EXTENSIONS":      DeviceMemMgtExt,
	"IB_UVERBS_DEVICE_MEM_WINDOW_TYPE_2B":      DeviceMemWindow2B,
	"IBV_ATOMIC_HCA":                           AtomicHCA,
	"IBV_PORT_DOWN":                            PortDown,
	"IBV_PORT_ACTIVE":                          PortActive,
	"IBV_MTU_4096":                             MTU4096,
	"IBV_LINK_LAYER_ETHERNET":                  LinkLayerEthernet,
	"IBV_PORT_CM_SUP":                          PortCapCM,
	"IBV_PORT_IP_BASED_GIDS":                   PortCapIPBasedGID,
	"IB_UVERBS_CREATE_QP_MASK_IND_TABLE":       CreateQPMaskIndTable,
	"IBV_WC_SUCCESS":                           WCStatusSuccess,
	"IBV_WC_LOC_LEN_ERR":                       WCStatusLocLenErr,
	"IBV_WC_LOC_QP_OP_ERR":                     WCStatusLocQPOpErr,
	"IBV_WC_LOC_EEC_OP_ERR":                    WCStatusLocEECOpErr,
	"IBV_WC_LOC_PROT_ERR":                      WCStatusLocProtErr,
	"IBV_WC_WR_FLUSH_ERR":                      WCStatusWRFlushErr,
	"IBV_WC_MW_BIND_ERR":                       WCStatusMWBindErr,
	"IBV_WC_BAD_RESP_ERR":                      WCStatusBadRespErr,
	"IBV_WC_LOC_ACCESS_ERR":                    WCStatusLocAccessErr,
	"IBV_WC_REM_INV_REQ_ERR":                   WCStatusRemInvReqErr,
	"IBV_WC_REM_ACCESS_ERR":                    WCStatusRemAccessErr,
	"IBV_WC_REM_OP_ERR":                        WCStatusRemOpErr,
	"IBV_WC_RETRY_EXC_ERR":                     WCStatusRetryExcErr,
	"IBV_WC_RNR_RETRY_EXC_ERR":                 WCStatusRNRRetryExcErr,
	"IBV_WC_LOC_RDD_VIOL_ERR":                  WCStatusLocRDDViolErr,
	"IBV_WC_REM_INV_RD_REQ_ERR":                WCStatusRemInvRDReqErr,
	"IBV_WC_REM_ABORT_ERR":                     WCStatusRemAbortErr,
	"IBV_WC_INV_EECN_ERR":                      WCStatusInvEECNErr,
	"IBV_WC_INV_EEC_STATE_ERR":                 WCStatusInvEECStateErr,
	"IBV_WC_FATAL_ERR":                         WCStatusFatalErr,
	"IBV_WC_RESP_TIMEOUT_ERR":                  WCStatusRespTimeoutErr,
	"IBV_WC_GENERAL_ERR":                       WCStatusGeneralErr,
	"IBV_WR_RDMA_WRITE":                        WRWrite,
	"IBV_WR_RDMA_WRITE_WITH_IMM":               WRWriteImm,
	"IBV_WR_SEND":                              WRSend,
	"IBV_WR_SEND_WITH_IMM":                     WRSendImm,
	"IBV_WR_RDMA_READ":                         WRRead,
	"IBV_WR_ATOMIC_CMP_AND_SWP":                WRCmpSwap,
	"IBV_WR_ATOMIC_FETCH_AND_ADD":              WRFetchAdd,
	"IBV_WR_LOCAL_INV":                         WRLocalInv,
	"IBV_WR_BIND_MW":                           WRBindMW,
	"IBV_WR_SEND_WITH_INV":                     WRSendInv,
	"IBV_SEND_FENCE":                           WRFlagFence,
	"IBV_SEND_SIGNALED":                        WRFlagSignaled,
	"IBV_SEND_SOLICITED":                       WRFlagSolicited,
	"IBV_SEND_INLINE":                          WRFlagInline,
	"IBV_WC_SEND":                              WCOpSend,
	"IBV_WC_RDMA_WRITE":                        WCOpWrite,
	"IBV_WC_RDMA_READ":                         WCOpRead,
	"IBV_WC_COMP_SWAP":                         WCOpCmpSwap,
	"IBV_WC_FETCH_ADD":                         WCOpFetchAdd,
	"IBV_WC_BIND_MW":                           WCOpBindMW,
	"IBV_WC_LOCAL_INV":                         WCOpLocalInv,
	"IBV_WC_RECV":                              WCOpRecv,
	"IBV_WC_RECV_RDMA_WITH_IMM":                WCOpRecvWriteImm,
	"IBV_WC_GRH":                               WCFlagGRH,
	"IBV_WC_WITH_IMM":                          WCFlagImm,
	"IBV_WC_WITH_INV":                          WCFlagInv,

	"offsetof(struct rxe_queue_buf, log2_elem_size)":          QueueLog2ElemSize,
	"offsetof(struct rxe_queue_buf, index_mask)":              QueueIndexMask,
	"offsetof(struct rxe_queue_buf, producer_index)":          QueueProducerIndex,
	"offsetof(struct rxe_queue_buf, consumer_index)":          QueueConsumerIndex,
	"offsetof(struct rxe_queue_buf, data)":                    QueueData,
	"offsetof(struct rxe_send_wqe, wr.wr_id)":                 SendWRID,
	"offsetof(struct rxe_send_wqe, wr.opcode)":                SendOpcode,
	"offsetof(struct rxe_send_wqe, wr.send_flags)":            SendFlags,
	"offsetof(struct rxe_send_wqe, wr.ex)":                    SendImm,
	"offsetof(struct rxe_send_wqe, wr.wr)":                    SendWR,
	"offsetof(struct rxe_send_wqe, wr.wr.rdma.remote_addr)":   SendRemoteAddr,
	"offsetof(struct rxe_send_wqe, wr.wr.rdma.rkey)":          SendRKey,
	"offsetof(struct rxe_send_wqe, wr.wr.atomic.compare_add)": SendCompareAdd,
	"offsetof(struct rxe_send_wqe, wr.wr.atomic.swap)":        SendSwap,
	"offsetof(struct rxe_send_wqe, wr.wr.atomic.rkey)":        SendAtomicRKey,
	"offsetof(struct rxe_send_wqe, wr.wr.ud.remote_qpn)":      SendRemoteQPN,
	"offsetof(struct rxe_send_wqe, wr.wr.ud.remote_qkey)":     SendRemoteQKey,
	"offsetof(struct rxe_send_wqe, wr.wr.ud.pkey_index)":      SendUDPKeyIndex,
	"offsetof(struct rxe_send_wqe, wr.wr.ud.ah_num)":          SendAHNum,
	"offsetof(struct rxe_send_wqe, wr.wr.ud.av)":              SendAV,
	"offsetof(struct rxe_send_wqe, wr.wr.mw.addr)":            SendMWAddr,
	"offsetof(struct rxe_send_wqe, wr.wr.mw.length)":          SendMWLength,
	"offsetof(struct rxe_send_wqe, wr.wr.mw.mr_lkey)":         SendMWMRLKey,
	"offsetof(struct rxe_send_wqe, wr.wr.mw.mw_rkey)":         SendMWMWRKey,
	"offsetof(struct rxe_send_wqe, wr.wr.mw.rkey)":            SendMWRKey,
	"offsetof(struct rxe_send_wqe, wr.wr.mw.access)":          SendMWAccess,
	"offsetof(struct rxe_send_wqe, status)":                   SendStatus,
	"offsetof(struct rxe_send_wqe, state)":                    SendState,
	"offsetof(struct rxe_send_wqe, iova)":                     SendIOVA,
	"offsetof(struct rxe_send_wqe, ssn)":                      SendSSN,
	"offsetof(struct rxe_send_wqe, dma.length)":               SendDMALength,
	"offsetof(struct rxe_send_wqe, dma.resid)":                SendDMAResid,
	"offsetof(struct rxe_send_wqe, dma.num_sge)":              SendNumSGE,
	"offsetof(struct rxe_send_wqe, dma.sge)":                  SendSGE,
	"offsetof(struct rxe_send_wqe, dma.inline_data)":          SendInline,
	"sizeof(struct rxe_send_wqe)":                             SendWQESize,
	"offsetof(struct rxe_av, port_num)":                       AVPortNum,
	"offsetof(struct rxe_av, network_type)":                   AVNetworkType,
	"offsetof(struct rxe_av, grh.dgid)":                       AVDGID,
	"offsetof(struct rxe_av, grh.sgid_index)":                 AVSGIDIndex,
	"sizeof(struct rxe_av)":                                   AVSize,
	"offsetof(struct rxe_recv_wqe, wr_id)":                    RecvWRID,
	"offsetof(struct rxe_recv_wqe, dma.length)":               RecvDMALength,
	"offsetof(struct rxe_recv_wqe, dma.resid)":                RecvDMAResid,
	"offsetof(struct rxe_recv_wqe, dma.num_sge)":              RecvNumSGE,
	"offsetof(struct rxe_recv_wqe, dma.sge)":                  RecvSGE,
	"sizeof(struct rxe_recv_wqe)":                             RecvWQESize,
	"offsetof(struct rxe_sge, addr)":                          SGEAddr,
	"offsetof(struct rxe_sge, length)":                        SGELength,
	"offsetof(struct rxe_sge, lkey)":                          SGELKey,
	"sizeof(struct rxe_sge)":                                  SGESize,
	"offsetof(struct ib_uverbs_wc, wr_id)":                    WCWRID,
	"offsetof(struct ib_uverbs_wc, status)":                   WCStatus,
	"offsetof(struct ib_uverbs_wc, opcode)":                   WCOpcode,
	"offsetof(struct ib_uverbs_wc, vendor_err)":               WCVendorErr,
	"offsetof(struct ib_uverbs_wc, byte_len)":                 WCByteLen,
	"offsetof(struct ib_uverbs_wc, ex)":                       WCImm,
	"offsetof(struct ib_uverbs_wc, qp_num)":                   WCQPNum,
	"offsetof(struct ib_uverbs_wc, src_qp)":                   WCSrcQP,
	"offsetof(struct ib_uverbs_wc, wc_flags)":                 WCFlags,
	"offsetof(struct ib_uverbs_wc, pkey_index)":               WCPKeyIndex,
	"offsetof(struct ib_uverbs_wc, slid)":                     WCSLID,
	"offsetof(struct ib_uverbs_wc, sl)":                       WCSL,
	"offsetof(struct ib_uverbs_wc, dlid_path_bits)":           WCPathBits,
	"offsetof(struct ib_uverbs_wc, port_num)":                 WCPortNum,
	"sizeof(struct ib_uverbs_wc)":                             WCSize,
}

// TestLayout compiles the system's headers and compares every number of this
// package that has a C twin.
func TestLayout(t *testing.T) {
	cc, err := exec.LookPath("gcc")
	if err != nil {
		t.Fatal("gcc not found: install gcc and libibverbs-dev to check the ABI")
	}
	want := map[string]int64{}
	for c, v := range constants {
		want[c] = v
	}
	for name, v := range layouts {
		typ := reflect.TypeOf(v)
		want[fmt.Sprintf("sizeof(struct %s)", name)] = int64(typ.Size())
		for i := range typ.NumField() {
			f := typ.Field(i)
			if f.Name == "_" {
				continue
			}
			want[fmt.Sprintf("offsetof(struct %s, %s)", name, f.Tag.Get("c"))] = int64(f.Offset)
		}
	}
	got := evaluate(t, cc, want)
	for expr, v := range want {
		if got[expr] != v {
			t.Errorf("%s: C says %d, Go says %d", expr, got[expr], v)
		}
	}
}

// evaluate prints the value of every key of exprs by a C program.
func evaluate(t *testing.T, cc string, exprs map[string]int64) map[string]int64 {
	t.Helper()
	var src strings.Builder
	src.WriteString("#include <stdio.h>\n#include <stddef.h>\n#include <infiniband/verbs.h>\n" +
		"#include <rdma/ib_user_verbs.h>\n#include <rdma/ib_user_ioctl_verbs.h>\n#include <rdma/rdma_user_rxe.h>\n#include <rdma/rdma_user_cm.h>\nint main(void) {\n")
	for e := range exprs {
		fmt.Fprintf(&src, "printf(\"%%lld\\t%%s\\n\", (long long)(%s), %q);\n", e, e)
	}
	src.WriteString("return 0; }\n")
	dir := t.TempDir()
	file, bin := filepath.Join(dir, "layout.c"), filepath.Join(dir, "layout")
	if err := os.WriteFile(file, []byte(src.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(cc, "-o", bin, file).CombinedOutput(); err != nil {
		t.Fatalf("compiling the layout program (is libibverbs-dev installed?): %v\n%s", err, out)
	}
	out, err := exec.Command(bin).Output()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int64{}
	for line := range strings.Lines(string(out)) {
		var v int64
		num, expr, _ := strings.Cut(strings.TrimSpace(line), "\t")
		fmt.Sscan(num, &v)
		got[expr] = v
	}
	return got
}

// TestPlain holds what abi_unsafe.go relies on: no pointers, no padding.
func TestPlain(t *testing.T) {
	for name, v := range layouts {
		typ := reflect.TypeOf(v)
		var sum uintptr
		for i := range typ.NumField() {
			f := typ.Field(i)
			sum += f.Type.Size()
			switch k := f.Type.Kind(); k {
			case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Int32, reflect.Uint64, reflect.Struct:
			case reflect.Array:
				if e := f.Type.Elem().Kind(); e != reflect.Uint8 {
					t.Errorf("%s.%s: array of %v", name, f.Name, e)
				}
			default:
				t.Errorf("%s.%s has kind %v", name, f.Name, k)
			}
		}
		if sum != typ.Size() {
			t.Errorf("%s: fields take %d bytes, the struct %d: padding", name, sum, typ.Size())
		}
	}
}

func TestDecode(t *testing.T) {
	src := []byte{1, 0, 0, 0, 2, 0, 3, 0, 9}
	var h CmdHeader
	if !Decode(src, &h) || h.Command != 1 || h.InWords != 2 || h.OutWords != 3 {
		t.Errorf("Decode(%v) = %+v", src, h)
	}
	src[0] = 7
	if h.Command != 1 {
		t.Error("the decoded value aliases its source")
	}
	h.OutWords = 0xffff
	if Decode(src[:5], &h) || h.Command != 7 || h.InWords != 2 || h.OutWords != 0 {
		t.Errorf("a short source: %+v, want zeros after its end", h)
	}
	if out := Encode([]byte{5}, &h); len(out) != 1+Size[CmdHeader]() || out[0] != 5 || out[1] != 7 {
		t.Errorf("Encode = %v", out)
	}
}

func FuzzRoundTrip(f *testing.F) {
	f.Add(make([]byte, 144))
	f.Fuzz(func(t *testing.T, b []byte) {
		var v ModifyQP
		if !Decode(b, &v) {
			return
		}
		if got := Encode(nil, &v); string(got) != string(b[:len(got)]) {
			t.Errorf("round trip: %x, want %x", got, b)
		}
	})
}
