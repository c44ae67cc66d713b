package uverbs

import (
	"syscall"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/device/nic"
)

func allocPD(c *Call, _ *abi.AllocPD, resp *abi.AllocPDResp) error {
	return c.dev.Do(func(s *nic.Session) (err error) {
		resp.PDHandle, err = s.AllocPD()
		return err
	})
}

func deallocPD(c *Call, req *abi.DeallocPD) error {
	return c.dev.Do(func(s *nic.Session) error { return s.DeallocPD(req.PDHandle) })
}

// regMR maps the memory first, because that is slow, and creates the region on the loop.
func regMR(c *Call, req *abi.RegMR, resp *abi.RegMRResp) error {
	params := nic.MRParams{
		PD: req.PDHandle, Start: req.Start, Length: req.Length, HcaVA: req.HCAVA, Access: req.AccessFlags,
	}
	if _, err := params.Check(); err != nil {
		return err
	}
	region, err := c.dev.Map(req.Start, req.Length)
	if err != nil {
		return err
	}
	owned := false // whether the NIC owns the region
	defer func() {
		if !owned {
			region.Release()
		}
	}()
	return c.dev.Do(func(s *nic.Session) error {
		params.Region = region
		mr, err := s.RegMR(params)
		owned = err == nil
		resp.MRHandle, resp.LKey, resp.RKey = mr.Handle, mr.LKey, mr.RKey
		return err
	})
}

func deregMR(c *Call, req *abi.DeregMR) error {
	err := c.dev.Do(func(s *nic.Session) error { return s.DeregMR(req.MRHandle) })
	c.dev.Settle()
	return err
}

func allocMW(c *Call, req *abi.AllocMW, resp *abi.AllocMWResp) error {
	if req.MWType != abi.MWType1 && req.MWType != abi.MWType2 {
		return syscall.EINVAL
	}
	return c.dev.Do(func(s *nic.Session) error {
		mw, err := s.AllocMW(req.PDHandle, req.MWType)
		resp.MWHandle, resp.RKey = mw.Handle, mw.RKey
		return err
	})
}

func deallocMW(c *Call, req *abi.DeallocMW) error {
	return c.dev.Do(func(s *nic.Session) error { return s.DeallocMW(req.MWHandle) })
}
