package abitext

import (
	"fmt"
	"net/netip"
	"strings"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/ib"
)

// The usual names, without their IBV_ prefixes.

type flagName struct {
	bit  uint64
	name string
}

var accessNames = []flagName{
	{abi.AccessLocalWrite, "LOCAL_WRITE"}, {abi.AccessRemoteWrite, "REMOTE_WRITE"},
	{abi.AccessRemoteRead, "REMOTE_READ"}, {abi.AccessRemoteAtomic, "REMOTE_ATOMIC"},
	{abi.AccessMWBind, "MW_BIND"}, {abi.AccessZeroBased, "ZERO_BASED"},
	{abi.AccessOnDemand, "ON_DEMAND"}, {abi.AccessHugeTLB, "HUGETLB"},
	{abi.AccessFlushGlobal, "FLUSH_GLOBAL"}, {abi.AccessFlushPersistent, "FLUSH_PERSISTENT"},
	{abi.AccessRelaxedOrdering, "RELAXED_ORDERING"},
}

var qpMaskNames = []flagName{
	{abi.QPMaskState, "STATE"}, {abi.QPMaskCurState, "CUR_STATE"},
	{abi.QPMaskEnSQDAsyncNotify, "EN_SQD_ASYNC_NOTIFY"}, {abi.QPMaskAccessFlags, "ACCESS_FLAGS"},
	{abi.QPMaskPKeyIndex, "PKEY_INDEX"}, {abi.QPMaskPort, "PORT"}, {abi.QPMaskQKey, "QKEY"},
	{abi.QPMaskAV, "AV"}, {abi.QPMaskPathMTU, "PATH_MTU"}, {abi.QPMaskTimeout, "TIMEOUT"},
	{abi.QPMaskRetryCnt, "RETRY_CNT"}, {abi.QPMaskRNRRetry, "RNR_RETRY"}, {abi.QPMaskRQPSN, "RQ_PSN"},
	{abi.QPMaskMaxQPRDAtomic, "MAX_QP_RD_ATOMIC"}, {abi.QPMaskAltPath, "ALT_PATH"},
	{abi.QPMaskMinRNRTimer, "MIN_RNR_TIMER"}, {abi.QPMaskSQPSN, "SQ_PSN"},
	{abi.QPMaskMaxDestRDAtomic, "MAX_DEST_RD_ATOMIC"}, {abi.QPMaskPathMigState, "PATH_MIG_STATE"},
	{abi.QPMaskCap, "CAP"}, {abi.QPMaskDestQPN, "DEST_QPN"}, {abi.QPMaskRateLimit, "RATE_LIMIT"},
}

var srqMaskNames = []flagName{{abi.SRQMaskMaxWR, "MAX_WR"}, {abi.SRQMaskLimit, "LIMIT"}}

var qpTypeNames = map[uint64]string{
	abi.QPTypeSMI: "SMI", abi.QPTypeGSI: "GSI", abi.QPTypeRC: "RC", abi.QPTypeUC: "UC", abi.QPTypeUD: "UD",
	abi.QPTypeRawPacket: "RAW_PACKET", abi.QPTypeXRCIni: "XRC_SEND", abi.QPTypeXRCTgt: "XRC_RECV",
	abi.QPTypeDriver: "DRIVER",
}

// QPStates are the states of a queue pair.
var QPStates = map[uint64]string{
	abi.QPStateReset: "RESET", abi.QPStateInit: "INIT", abi.QPStateRTR: "RTR", abi.QPStateRTS: "RTS",
	abi.QPStateSQD: "SQD", abi.QPStateSQE: "SQE", abi.QPStateErr: "ERR",
}

var srqTypeNames = map[uint64]string{abi.SRQTypeBasic: "BASIC", abi.SRQTypeXRC: "XRC", abi.SRQTypeTM: "TM"}

// flagText prints a mask by names: LOCAL_WRITE|REMOTE_READ|0x1000.
func flagText(names []flagName, v uint64) string {
	if v == 0 {
		return "0"
	}
	var parts []string
	for _, n := range names {
		if v&n.bit != 0 {
			parts = append(parts, n.name)
			v &^= n.bit
		}
	}
	if v != 0 {
		parts = append(parts, fmt.Sprintf("%#x", v))
	}
	return strings.Join(parts, "|")
}

// Name returns the name of v, or the number.
func Name(names map[uint64]string, v uint64) string {
	if n, ok := names[v]; ok {
		return n
	}
	return fmt.Sprint(v)
}

// GID prints a GID as an address, as IPv4 if it is mapped.
func GID(g ib.GID) string { return netip.AddrFrom16(g).Unmap().String() }

// SysfsGID prints a GID as sysfs does.
func SysfsGID(g ib.GID) string {
	var b strings.Builder
	for i := 0; i < 16; i += 2 {
		if i > 0 {
			b.WriteByte(':')
		}
		fmt.Fprintf(&b, "%02x%02x", g[i], g[i+1])
	}
	return b.String()
}

// SysfsGUID prints a GUID as sysfs does.
func SysfsGUID(v uint64) string {
	return fmt.Sprintf("%04x:%04x:%04x:%04x", v>>48, v>>32&0xffff, v>>16&0xffff, v&0xffff)
}
