package uverbs

import (
	"syscall"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/device/nic"
)

func createSRQ(c *Call, req *abi.CreateSRQ, resp *abi.CreateSRQResp) error {
	return newSRQ(c, nic.SRQParams{
		UserHandle: req.UserHandle, PD: req.PDHandle, MaxWR: req.MaxWR, MaxSGE: req.MaxSGE, Limit: req.SRQLimit,
	}, resp)
}

func createXSRQ(c *Call, req *abi.CreateXSRQ, resp *abi.CreateSRQResp) error {
	if req.SRQType != abi.SRQTypeBasic { // XRC, tag matching
		return syscall.EOPNOTSUPP
	}
	return newSRQ(c, nic.SRQParams{
		UserHandle: req.UserHandle, PD: req.PDHandle, MaxWR: req.MaxWR, MaxSGE: req.MaxSGE, Limit: req.SRQLimit,
	}, resp)
}

func newSRQ(c *Call, p nic.SRQParams, resp *abi.CreateSRQResp) error {
	if err := needDriverOut[abi.RxeCreateSRQResp](c); err != nil {
		return err
	}
	var q nic.SRQInfo
	err := c.dev.Do(func(s *nic.Session) (err error) {
		q, err = s.CreateSRQ(p)
		return err
	})
	if err != nil {
		return err
	}
	resp.SRQHandle, resp.MaxWR, resp.MaxSGE = q.Handle, q.MaxWR, q.MaxSGE
	driverAnswer(c, &abi.RxeCreateSRQResp{MI: mapInfo(q.Ring), SRQNum: q.Num})
	return nil
}

// modifySRQ has no response. The location of the new ring is stored at an address in the provider's part of the request.
func modifySRQ(c *Call, req *abi.ModifySRQ) error {
	var drv abi.RxeModifySRQCmd
	if !abi.Decode(c.driverIn, &drv) {
		return syscall.EINVAL
	}
	var ring nic.MMap
	var resized bool
	err := c.dev.Do(func(s *nic.Session) (err error) {
		ring, resized, err = s.ModifySRQ(req.SRQHandle, req.AttrMask, req.MaxWR, req.SRQLimit)
		return err
	})
	if err != nil || !resized {
		return err
	}
	mi := mapInfo(ring)
	c.stores = append(c.stores, protocol.Store{Address: drv.MMapInfoAddr, Data: abi.Encode(nil, &mi)})
	return nil
}

func querySRQ(c *Call, req *abi.QuerySRQ, resp *abi.QuerySRQResp) error {
	return c.dev.Do(func(s *nic.Session) error {
		a, err := s.QuerySRQ(req.SRQHandle)
		resp.MaxWR, resp.MaxSGE, resp.SRQLimit = a.MaxWR, a.MaxSGE, a.Limit
		return err
	})
}

func destroySRQ(c *Call, req *abi.DestroySRQ, resp *abi.DestroySRQResp) error {
	return c.dev.Do(func(s *nic.Session) (err error) {
		resp.EventsReported, err = s.DestroySRQ(req.SRQHandle)
		return err
	})
}
