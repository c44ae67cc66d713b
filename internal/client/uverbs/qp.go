package uverbs

import (
	"syscall"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/ib"
)

func createQP(c *Call, req *abi.CreateQP, resp *abi.CreateQPResp) error {
	return newQP(c, &abi.ExCreateQP{
		UserHandle: req.UserHandle, PDHandle: req.PDHandle,
		SendCQHandle: req.SendCQHandle, RecvCQHandle: req.RecvCQHandle, SRQHandle: req.SRQHandle,
		MaxSendWR: req.MaxSendWR, MaxRecvWR: req.MaxRecvWR, MaxSendSGE: req.MaxSendSGE, MaxRecvSGE: req.MaxRecvSGE,
		MaxInlineData: req.MaxInlineData, SQSigAll: req.SQSigAll, QPType: req.QPType, IsSRQ: req.IsSRQ,
	}, resp)
}

func exCreateQP(c *Call, req *abi.ExCreateQP, resp *abi.ExCreateQPResp) error {
	if req.CompMask&^abi.CreateQPMaskIndTable != 0 || req.Reserved != 0 {
		return syscall.EINVAL
	}
	if req.CompMask != 0 { // indirection tables are not supported
		return syscall.EINVAL
	}
	resp.ResponseLength = uint32(min(c.out, abi.Size[abi.ExCreateQPResp]()))
	return newQP(c, req, &resp.Base)
}

// newQP makes its checks in the order of create_qp and rxe_create_qp.
func newQP(c *Call, req *abi.ExCreateQP, resp *abi.CreateQPResp) error {
	switch req.QPType {
	case abi.QPTypeRC, abi.QPTypeUC, abi.QPTypeUD:
	case abi.QPTypeRawPacket, abi.QPTypeXRCIni, abi.QPTypeXRCTgt, abi.QPTypeDriver:
		return syscall.EOPNOTSUPP
	default:
		return syscall.EINVAL
	}
	if req.CreateFlags&^abi.QPCreateUserFlags != 0 {
		return syscall.EINVAL
	}
	if err := needDriverOut[abi.RxeCreateQPResp](c); err != nil {
		return err
	}
	if req.CreateFlags != 0 {
		return syscall.EOPNOTSUPP
	}
	if len(c.driverIn) != 0 {
		return syscall.EINVAL
	}
	var qp nic.QPInfo
	err := c.dev.Do(func(s *nic.Session) (err error) {
		qp, err = s.CreateQP(nic.QPParams{
			UserHandle: req.UserHandle, PD: req.PDHandle, SendCQ: req.SendCQHandle, RecvCQ: req.RecvCQHandle,
			SRQ: req.SRQHandle, HasSRQ: req.IsSRQ != 0,
			Cap: nic.QPCap{
				SendWR: req.MaxSendWR, RecvWR: req.MaxRecvWR, SendSGE: req.MaxSendSGE, RecvSGE: req.MaxRecvSGE,
				Inline: req.MaxInlineData,
			},
			SigAll: req.SQSigAll != 0, Type: req.QPType,
		})
		return err
	})
	if err != nil {
		return err
	}
	*resp = abi.CreateQPResp{
		QPHandle: qp.Handle, QPN: qp.Num, MaxSendWR: qp.Cap.SendWR, MaxRecvWR: qp.Cap.RecvWR,
		MaxSendSGE: qp.Cap.SendSGE, MaxRecvSGE: qp.Cap.RecvSGE, MaxInlineData: qp.Cap.Inline,
	}
	driverAnswer(c, &abi.RxeCreateQPResp{RQMI: mapInfo(qp.RQ), SQMI: mapInfo(qp.SQ)})
	return nil
}

func queryQP(c *Call, req *abi.QueryQP, resp *abi.QueryQPResp) error {
	var a nic.QPAttr
	var init nic.QPInit
	err := c.dev.Do(func(s *nic.Session) (err error) {
		a, init, err = s.QueryQP(req.QPHandle)
		return err
	})
	if err != nil {
		return err
	}
	*resp = abi.QueryQPResp{
		Dest: toDest(&a.AH), AltDest: toDest(&a.AltAH),
		MaxSendWR: init.Cap.SendWR, MaxRecvWR: init.Cap.RecvWR, MaxSendSGE: init.Cap.SendSGE,
		MaxRecvSGE: init.Cap.RecvSGE, MaxInlineData: init.Cap.Inline,
		QKey: a.QKey, RQPSN: a.RQPSN, SQPSN: a.SQPSN, DestQPNum: a.DestQPN, QPAccessFlags: a.AccessFlags,
		PKeyIndex: a.PKeyIndex, AltPKeyIndex: a.AltPKeyIndex, QPState: a.State, CurQPState: a.CurState,
		PathMTU: a.PathMTU, PathMigState: a.PathMig, SQDraining: a.SQDraining,
		MaxRDAtomic: a.MaxRDAtomic, MaxDestRDAtomic: a.MaxDestRDAtomic, MinRNRTimer: a.MinRNRTimer,
		PortNum: a.PortNum, Timeout: a.Timeout, RetryCnt: a.RetryCnt, RNRRetry: a.RNRRetry,
		AltPortNum: a.AltPortNum, AltTimeout: a.AltTimeout,
	}
	if init.SigAll {
		resp.SQSigAll = 1
	}
	return nil
}

func modifyQP(c *Call, req *abi.ModifyQP) error {
	if req.AttrMask&^abi.QPMaskStandard != 0 {
		return syscall.EOPNOTSUPP
	}
	return changeQP(c, req)
}

// exModifyQP differs from modifyQP in the rate limit, which rxe does not support.
func exModifyQP(c *Call, req *abi.ExModifyQP, resp *abi.ExModifyQPResp) error {
	if req.Base.AttrMask&^abi.QPMaskStandard != 0 {
		return syscall.EOPNOTSUPP
	}
	resp.ResponseLength = uint32(min(c.out, abi.Size[abi.ExModifyQPResp]()))
	return changeQP(c, &req.Base)
}

// changeQP makes the checks of modify_qp in uverbs_cmd.c; the NIC checks the state table.
func changeQP(c *Call, req *abi.ModifyQP) error {
	mask := req.AttrMask
	has := func(bits uint32) bool { return mask&bits == bits }
	switch {
	case has(abi.QPMaskPort) && req.PortNum != 1,
		has(abi.QPMaskAV) && req.Dest.PortNum != 1,
		has(abi.QPMaskAltPath) && (req.AltPortNum != 1 || req.AltDest.PortNum != 1),
		has(abi.QPMaskCurState) && req.CurQPState > abi.QPStateErr,
		has(abi.QPMaskState) && req.QPState > abi.QPStateErr:
		return syscall.EINVAL
	}
	if has(abi.QPMaskAV) && !(has(abi.QPMaskState) && req.QPState == abi.QPStateRTR) && !has(abi.QPMaskPort) {
		// The kernel treats a new path as a new port.
		mask |= abi.QPMaskPort
		req.PortNum = req.Dest.PortNum
	}
	a := &nic.QPAttr{
		State: req.QPState, CurState: req.CurQPState, PathMTU: req.PathMTU, PathMig: req.PathMigState,
		QKey: req.QKey, RQPSN: req.RQPSN, SQPSN: req.SQPSN, DestQPN: req.DestQPNum, AccessFlags: req.QPAccessFlags,
		AH: fromDest(&req.Dest), AltAH: fromDest(&req.AltDest),
		PKeyIndex: req.PKeyIndex, AltPKeyIndex: req.AltPKeyIndex, EnSQDAsync: req.EnSQDAsyncNotify,
		MaxRDAtomic: req.MaxRDAtomic, MaxDestRDAtomic: req.MaxDestRDAtomic, MinRNRTimer: req.MinRNRTimer,
		PortNum: req.PortNum, Timeout: req.Timeout, RetryCnt: req.RetryCnt, RNRRetry: req.RNRRetry,
		AltPortNum: req.AltPortNum, AltTimeout: req.AltTimeout,
	}
	err := c.dev.Do(func(s *nic.Session) error { return s.ModifyQP(req.QPHandle, ib.AttrMask(mask), a) })
	if has(abi.QPMaskState) && (req.QPState == abi.QPStateReset || req.QPState == abi.QPStateErr) {
		c.dev.Settle()
	}
	return err
}

func fromDest(d *abi.QPDest) nic.AHAttr {
	return nic.AHAttr{
		DGID: ib.GID(d.DGID), FlowLabel: d.FlowLabel, SGIDIndex: d.SGIDIndex, HopLimit: d.HopLimit,
		TrafficClass: d.TrafficClass, DLID: d.DLID, SL: d.SL, SrcPathBits: d.SrcPathBits, StaticRate: d.StaticRate,
		IsGlobal: d.IsGlobal != 0, PortNum: d.PortNum,
	}
}

func toDest(a *nic.AHAttr) abi.QPDest {
	d := abi.QPDest{
		DLID: a.DLID, SL: a.SL, SrcPathBits: a.SrcPathBits, StaticRate: a.StaticRate, PortNum: a.PortNum,
	}
	if a.IsGlobal {
		d.IsGlobal = 1
		d.DGID, d.FlowLabel, d.SGIDIndex = a.DGID, a.FlowLabel, a.SGIDIndex
		d.HopLimit, d.TrafficClass = a.HopLimit, a.TrafficClass
	}
	return d
}

func destroyQP(c *Call, req *abi.DestroyQP, resp *abi.DestroyQPResp) error {
	err := c.dev.Do(func(s *nic.Session) (err error) {
		resp.EventsReported, err = s.DestroyQP(req.QPHandle)
		return err
	})
	c.dev.Settle()
	return err
}

// postSend is the provider's doorbell: a command without work requests. The interposer rings the doorbell page instead if it
// knows that the queue pair may send. The errnos are those of rxe_post_send.
func postSend(c *Call, req *abi.PostSend, _ *abi.PostSendResp) error {
	if req.WRCount != 0 || req.SGECount != 0 {
		return syscall.EOPNOTSUPP
	}
	return c.dev.Do(func(s *nic.Session) error {
		q := s.QP(req.QPHandle)
		if q == nil || !q.CanPost() {
			return syscall.EINVAL
		}
		c.dev.Wake(q)
		return nil
	})
}
