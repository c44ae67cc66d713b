package uverbs

import (
	"math/bits"
	"syscall"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/transport"
)

// Attributes of the device: rxe's values where a program could depend on them (drivers/infiniband/sw/rxe/rxe_param.h), otherwise
// the NIC's limits.
const (
	// DeviceCaps are the capability flags.
	DeviceCaps = abi.DeviceBadPKeyCntr | abi.DeviceBadQKeyCntr | abi.DeviceAutoPathMig |
		abi.DeviceChangePhyPort | abi.DeviceUDAVPortEnforce | abi.DevicePortActiveEvent |
		abi.DeviceSysImageGUID | abi.DeviceRCRNRNAKGen | abi.DeviceSRQResize |
		abi.DeviceMemMgtExt | abi.DeviceMemWindow | abi.DeviceMemWindow2B |
		abi.DeviceFlushGlobal | abi.DeviceFlushPersistent | abi.DeviceAtomicWrite

	pageSizeCap     = 0xfffff000
	vendorID        = 0xffffff
	maxResRDAtom    = 0x3f000
	maxTotalMcast   = 0x70000
	localCAAckDelay = 15

	maxVLs = 1
)

func getContext(c *Call, _ *abi.GetContext, resp *abi.GetContextResp) error {
	if c.ctx.open {
		return syscall.EINVAL
	}
	var events Handle
	err := c.dev.Do(func(s *nic.Session) error { return s.CreateAsync(c.openEvents(&events)) })
	if err != nil {
		return err
	}
	c.ctx.open = true
	resp.NumCompVectors = nic.CompVectors
	c.pass(events, 0, protocol.FDAsync, 0)
	return nil
}

func queryDevice(c *Call, _ *abi.QueryDevice, resp *abi.QueryDeviceResp) error {
	*resp = describe(c.dev.NIC())
	return nil
}

func exQueryDevice(c *Call, req *abi.ExQueryDevice, resp *abi.ExQueryDeviceResp) error {
	if req.CompMask != 0 || req.Reserved != 0 || len(c.driverIn) != 0 || c.driverOut != 0 {
		return syscall.EINVAL
	}
	resp.Base = describe(c.dev.NIC())
	resp.DeviceCapFlagsEx = DeviceCaps
	resp.ResponseLength = uint32(min(c.out, abi.Size[abi.ExQueryDeviceResp]()))
	return nil
}

// describe returns ib_device_attr as QUERY_DEVICE shows it.
func describe(n *nic.NIC) abi.QueryDeviceResp {
	l := &n.Limits
	guid := bits.ReverseBytes64(n.NodeGUID) // __be64
	return abi.QueryDeviceResp{
		NodeGUID: guid, SysImageGUID: guid,
		MaxMRSize: ^uint64(0), PageSizeCap: pageSizeCap, VendorID: vendorID,
		MaxQP: uint32(l.QPs), MaxQPWR: l.QPWR, DeviceCapFlags: uint32(DeviceCaps & 0xffffffff),
		MaxSGE: l.SGE, MaxSGERD: l.SGE,
		MaxCQ: uint32(l.CQs), MaxCQE: l.CQE, MaxMR: uint32(l.MRs), MaxPD: uint32(l.PDs),
		MaxQPRDAtom: l.RDAtomic, MaxResRDAtom: maxResRDAtom, MaxQPInitRDAtom: l.RDAtomic,
		AtomicCap: abi.AtomicHCA, MaxMW: uint32(l.MWs),
		MaxMcastGroup: uint32(l.McastGroups), MaxMcastQPAttach: uint32(l.McastAttach),
		MaxTotalMcastQPAttach: maxTotalMcast,
		MaxAH:                 uint32(l.AHs), MaxSRQ: uint32(l.SRQs), MaxSRQWR: l.SRQWR, MaxSRQSGE: l.SRQSGE,
		MaxPKeys: nic.PKeys, LocalCAAckDelay: localCAAckDelay, PhysPortCnt: 1,
	}
}

func queryPort(c *Call, req *abi.QueryPort, resp *abi.QueryPortResp) error {
	if req.PortNum != 1 {
		return syscall.EINVAL
	}
	*resp = abi.QueryPortResp{
		PortCapFlags: abi.PortCapCM, MaxMsgSz: transport.MaxMessage,
		GIDTblLen: uint32(c.dev.NIC().GIDTableLen()), PKeyTblLen: nic.PKeys,
		State: abi.PortActive, MaxMTU: abi.MTU4096, ActiveMTU: c.dev.NIC().MTU, MaxVLNum: maxVLs,
		ActiveWidth: nic.PortWidth, ActiveSpeed: nic.PortSpeed,
		PhysState: abi.PhysStateLinkUp, LinkLayer: abi.LinkLayerEthernet, Flags: abi.QueryPortGRH,
	}
	return c.dev.Do(func(s *nic.Session) error {
		if s.Down() {
			resp.State, resp.PhysState = abi.PortDown, abi.PhysStateDisabled
		}
		return nil
	})
}
