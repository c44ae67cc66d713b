package uverbs

import (
	"syscall"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/device/nic"
)

func createCompChannel(c *Call, _ *abi.CreateCompChannel, _ *abi.CreateCompChannelResp) error {
	var id uint32
	var events Handle
	err := c.dev.Do(func(s *nic.Session) (err error) {
		id, err = s.CreateChannel(c.openEvents(&events))
		return err
	})
	if err != nil {
		return err
	}
	c.pass(events, 0, protocol.FDComp, id)
	return nil
}

func createCQ(c *Call, req *abi.CreateCQ, resp *abi.CreateCQResp) error {
	return newCQ(c, &abi.ExCreateCQ{
		UserHandle: req.UserHandle, CQE: req.CQE, CompVector: req.CompVector, CompChannel: req.CompChannel,
	}, resp)
}

func exCreateCQ(c *Call, req *abi.ExCreateCQ, resp *abi.ExCreateCQResp) error {
	if req.CompMask != 0 || req.Reserved != 0 {
		return syscall.EINVAL
	}
	resp.ResponseLength = uint32(min(c.out, abi.Size[abi.ExCreateCQResp]()))
	return newCQ(c, req, &resp.Base)
}

func newCQ(c *Call, req *abi.ExCreateCQ, resp *abi.CreateCQResp) error {
	if req.CompVector >= nic.CompVectors {
		return syscall.EINVAL
	}
	if err := needDriverOut[abi.RxeCreateCQResp](c); err != nil {
		return err
	}
	if req.Flags != 0 { // neither timestamps nor ignored overruns
		return syscall.EOPNOTSUPP
	}
	var cq nic.CQInfo
	err := c.dev.Do(func(s *nic.Session) (err error) {
		cq, err = s.CreateCQ(nic.CQParams{
			UserHandle: req.UserHandle, CQE: req.CQE, Vector: req.CompVector, Channel: req.CompChannel, Flags: req.Flags,
		})
		return err
	})
	if err != nil {
		return err
	}
	resp.CQHandle, resp.CQE = cq.Handle, cq.CQE
	driverAnswer(c, &abi.RxeCreateCQResp{MI: mapInfo(cq.Ring)})
	return nil
}

func mapInfo(m nic.MMap) abi.MMInfo { return abi.MMInfo{Offset: m.Offset, Size: m.Size} }

func resizeCQ(c *Call, req *abi.ResizeCQ, resp *abi.ResizeCQResp) error {
	if err := needDriverOut[abi.RxeResizeCQResp](c); err != nil {
		return err
	}
	var cq nic.CQInfo
	err := c.dev.Do(func(s *nic.Session) (err error) {
		cq, err = s.ResizeCQ(req.CQHandle, req.CQE)
		return err
	})
	if err != nil {
		return err
	}
	resp.CQE = cq.CQE
	driverAnswer(c, &abi.RxeResizeCQResp{MI: mapInfo(cq.Ring)})
	return nil
}

func reqNotifyCQ(c *Call, req *abi.ReqNotifyCQ) error {
	return c.dev.Do(func(s *nic.Session) error {
		if req.SolicitedOnly == protocol.NotifyLook {
			return s.LookArmed(req.CQHandle)
		}
		return s.ReqNotify(req.CQHandle, req.SolicitedOnly != 0)
	})
}

func destroyCQ(c *Call, req *abi.DestroyCQ, resp *abi.DestroyCQResp) error {
	return c.dev.Do(func(s *nic.Session) (err error) {
		resp.CompEventsReported, resp.AsyncEventsReported, err = s.DestroyCQ(req.CQHandle)
		return err
	})
}
