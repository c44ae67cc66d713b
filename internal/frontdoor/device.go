package frontdoor

import (
	"math/bits"
	"syscall"

	"vrdma/internal/abi"
	"vrdma/internal/channel"
	"vrdma/internal/nic"
	"vrdma/internal/transport"
)

// What the device says about itself: rxe's values where a program could depend on
// them (drivers/infiniband/sw/rxe/rxe_param.h), the NIC's own limits elsewhere.
const (
	deviceCaps = abi.DeviceBadPKeyCntr | abi.DeviceBadQKeyCntr | abi.DeviceAutoPathMig |
		abi.DeviceChangePhyPort | abi.DeviceUDAVPortEnforce | abi.DevicePortActiveEvent |
		abi.DeviceSysImageGUID | abi.DeviceRCRNRNAKGen | abi.DeviceSRQResize |
		abi.DeviceMemMgtExt | abi.DeviceMemWindow | abi.DeviceMemWindow2B |
		abi.DeviceFlushGlobal | abi.DeviceFlushPersistent | abi.DeviceAtomicWrite

	pageSizeCap     = 0xfffff000
	vendorID        = 0xffffff
	maxResRDAtom    = 0x3f000
	maxTotalMcast   = 0x70000
	localCAAckDelay = 15

	pkeyTableLen = 1
	maxVLs       = 1
	// The rate that the port claims: what one core copies between two processes,
	// rounded to a rate that exists. Libraries weigh devices by it.
	portWidth = abi.Width4X
	portSpeed = abi.SpeedEDR
)

func getContext(c *call, _ *abi.GetContext, resp *abi.GetContextResp) error {
	if c.ses.context {
		return syscall.EINVAL
	}
	fd := -1
	err := c.ses.do(func(s *nic.Session) (err error) {
		fd, err = s.CreateAsync()
		return err
	})
	if err != nil {
		return err
	}
	c.ses.context = true
	resp.NumCompVectors = nic.CompVectors
	c.passFD(fd, 0, channel.FDAsync, 0)
	return nil
}

func queryDevice(c *call, _ *abi.QueryDevice, resp *abi.QueryDeviceResp) error {
	*resp = c.ses.srv.device()
	return nil
}

func exQueryDevice(c *call, req *abi.ExQueryDevice, resp *abi.ExQueryDeviceResp) error {
	if req.CompMask != 0 || req.Reserved != 0 || len(c.driverIn) != 0 || c.driverOut != 0 {
		return syscall.EINVAL
	}
	resp.Base = c.ses.srv.device()
	resp.DeviceCapFlagsEx = deviceCaps
	resp.ResponseLength = uint32(min(c.out, abi.Size[abi.ExQueryDeviceResp]()))
	return nil
}

// device is ib_device_attr as QUERY_DEVICE shows it.
func (s *Server) device() abi.QueryDeviceResp {
	l := &s.cfg.NIC.Limits
	guid := bits.ReverseBytes64(s.cfg.NIC.NodeGUID) // __be64
	return abi.QueryDeviceResp{
		NodeGUID: guid, SysImageGUID: guid,
		MaxMRSize: ^uint64(0), PageSizeCap: pageSizeCap, VendorID: vendorID,
		MaxQP: uint32(l.QPs), MaxQPWR: l.QPWR, DeviceCapFlags: uint32(deviceCaps & 0xffffffff),
		MaxSGE: l.SGE, MaxSGERD: l.SGE,
		MaxCQ: uint32(l.CQs), MaxCQE: l.CQE, MaxMR: uint32(l.MRs), MaxPD: uint32(l.PDs),
		MaxQPRDAtom: l.RDAtomic, MaxResRDAtom: maxResRDAtom, MaxQPInitRDAtom: l.RDAtomic,
		AtomicCap: abi.AtomicHCA, MaxMW: uint32(l.MWs),
		MaxMcastGroup: uint32(l.McastGroups), MaxMcastQPAttach: uint32(l.McastAttach),
		MaxTotalMcastQPAttach: maxTotalMcast,
		MaxAH:                 uint32(l.AHs), MaxSRQ: uint32(l.SRQs), MaxSRQWR: l.SRQWR, MaxSRQSGE: l.SRQSGE,
		MaxPKeys: pkeyTableLen, LocalCAAckDelay: localCAAckDelay, PhysPortCnt: 1,
	}
}

func queryPort(c *call, req *abi.QueryPort, resp *abi.QueryPortResp) error {
	if req.PortNum != 1 {
		return syscall.EINVAL
	}
	*resp = abi.QueryPortResp{
		PortCapFlags: abi.PortCapCM, MaxMsgSz: transport.MaxMessage,
		GIDTblLen: uint32(gidTableLen(c.ses.srv.cfg.NIC)), PKeyTblLen: pkeyTableLen,
		State: abi.PortActive, MaxMTU: abi.MTU4096, ActiveMTU: c.ses.srv.cfg.NIC.MTU, MaxVLNum: maxVLs,
		ActiveWidth: portWidth, ActiveSpeed: portSpeed,
		PhysState: abi.PhysStateLinkUp, LinkLayer: abi.LinkLayerEthernet, Flags: abi.QueryPortGRH,
	}
	return nil
}

// gidTableLen is the size of the GID table: as in the kernel, larger than what is in
// it; programs read every row, so not as large as there.
func gidTableLen(n *nic.NIC) int { return max(32, len(n.GIDs)) }
