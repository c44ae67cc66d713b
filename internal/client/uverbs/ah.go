package uverbs

import (
	"syscall"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/ib"
)

func createAH(c *Call, req *abi.CreateAH, resp *abi.CreateAHResp) error {
	a := &req.Attr
	if a.PortNum != 1 {
		return syscall.EINVAL
	}
	var handle, num uint32
	err := c.dev.Do(func(s *nic.Session) (err error) {
		handle, num, err = s.CreateAH(req.PDHandle, nic.AHAttr{
			DGID: ib.GID(a.GRH.DGID), FlowLabel: a.GRH.FlowLabel, SGIDIndex: a.GRH.SGIDIndex,
			HopLimit: a.GRH.HopLimit, TrafficClass: a.GRH.TrafficClass, DLID: a.DLID, SL: a.SL,
			SrcPathBits: a.SrcPathBits, StaticRate: a.StaticRate, IsGlobal: a.IsGlobal != 0, PortNum: a.PortNum,
		})
		return err
	})
	if err != nil {
		return err
	}
	resp.AHHandle = handle
	driverAnswer(c, &abi.RxeCreateAHResp{AHNum: num})
	return nil
}

func destroyAH(c *Call, req *abi.DestroyAH) error {
	return c.dev.Do(func(s *nic.Session) error { return s.DestroyAH(req.AHHandle) })
}

func attachMcast(c *Call, req *abi.AttachMcast) error {
	return c.dev.Do(func(s *nic.Session) error { return s.AttachMcast(req.QPHandle, req.GID, req.MLID) })
}

func detachMcast(c *Call, req *abi.AttachMcast) error {
	return c.dev.Do(func(s *nic.Session) error { return s.DetachMcast(req.QPHandle, req.GID, req.MLID) })
}
