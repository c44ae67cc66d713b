package rdmacm

import (
	"syscall"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/cm"
	"vrdma.dev/vrdma/internal/ib"
)

// minRNRTimer is how long a peer waits after an RNR NAK: code 12 is 0.64 ms. The kernel uses 0, which means 655 ms.
const minRNRTimer = 12

// flushAccess are the rights that cm_init_qp_init_attr adds, since Linux 6.2, for a device
// with either of the FLUSH capabilities. The vrdma device has both.
const flushAccess = abi.AccessFlushGlobal | abi.AccessFlushPersistent

// address returns an address vector to gid. The ID's own address may have been removed from the NIC meanwhile: then it returns an error,
// because another source address would be wrong.
func (id *ID) address(gid ib.GID) (abi.AHAttr, error) {
	row := id.cma.gidIndex(id.sgid)
	if row < 0 {
		return abi.AHAttr{}, syscall.EADDRNOTAVAIL
	}
	return abi.AHAttr{
		GRH:      abi.GlobalRoute{DGID: gid, SGIDIndex: uint8(row), HopLimit: hopLimit, TrafficClass: id.tos},
		IsGlobal: 1, PortNum: 1,
	}, nil
}

// QPAttr returns the attributes that the ID's queue pair needs to enter a state, like ib_cm_init_qp_attr.
func (id *ID) QPAttr(state uint32) (abi.QPAttr, error) {
	a := abi.QPAttr{QPState: state, PortNum: 1}
	if !id.device {
		return a, syscall.EINVAL
	}
	c := id.conn
	if id.ud() || c == nil {
		return id.initial(a)
	}
	switch state {
	case abi.QPStateInit:
		if c.State == cm.Closed || c.State == cm.TimeWait {
			return a, syscall.EINVAL
		}
		a.QPAttrMask = abi.QPMaskState | abi.QPMaskAccessFlags | abi.QPMaskPKeyIndex | abi.QPMaskPort
		a.QPAccessFlags = abi.AccessRemoteWrite
		if c.ResponderResources > 0 {
			a.QPAccessFlags |= abi.AccessRemoteRead | abi.AccessRemoteAtomic | flushAccess
		}
		return a, nil
	case abi.QPStateRTR:
		return id.toReceive(a, c)
	case abi.QPStateRTS:
		return id.toSend(a, c)
	}
	return a, syscall.EINVAL
}

// initial returns the attributes before a connection, and for datagrams in every state.
func (id *ID) initial(a abi.QPAttr) (abi.QPAttr, error) {
	a.QPAttrMask = abi.QPMaskState | abi.QPMaskPKeyIndex | abi.QPMaskPort
	if id.ud() {
		a.QKey = id.key()
		a.QPAttrMask |= abi.QPMaskQKey
	} else {
		a.QPAttrMask |= abi.QPMaskAccessFlags
	}
	return a, nil
}

// known reports whether the peer's parameters are known.
func known(c *cm.Conn) bool {
	switch c.State {
	case cm.ReqRcvd, cm.RepRcvd, cm.RepSent, cm.Established:
		return true
	}
	return false
}

func (id *ID) toReceive(a abi.QPAttr, c *cm.Conn) (abi.QPAttr, error) {
	if !known(c) {
		return a, syscall.EINVAL
	}
	a.QPAttrMask = abi.QPMaskState | abi.QPMaskAV | abi.QPMaskPathMTU | abi.QPMaskDestQPN | abi.QPMaskRQPSN
	var err error
	if a.AHAttr, err = id.address(id.dgid); err != nil {
		return a, err
	}
	a.PathMTU = uint32(c.Path.MTU)
	a.DestQPNum = c.RemoteQPN
	a.RQPSN = id.seq
	if id.qpType == abi.QPTypeRC {
		a.QPAttrMask |= abi.QPMaskMaxDestRDAtomic | abi.QPMaskMinRNRTimer
		a.MaxDestRDAtomic, a.MinRNRTimer = c.ResponderResources, minRNRTimer
	}
	return a, nil
}

func (id *ID) toSend(a abi.QPAttr, c *cm.Conn) (abi.QPAttr, error) {
	if !known(c) {
		return a, syscall.EINVAL
	}
	a.QPAttrMask = abi.QPMaskState | abi.QPMaskSQPSN
	a.SQPSN = c.SQPSN
	if id.qpType == abi.QPTypeRC {
		a.QPAttrMask |= abi.QPMaskTimeout | abi.QPMaskRetryCnt | abi.QPMaskRNRRetry | abi.QPMaskMaxQPRDAtomic
		a.Timeout, a.RetryCnt, a.RNRRetry = c.Path.AckTimeout, c.RetryCount, c.RNRRetryCount
		if id.ackTimeout != 0 {
			a.Timeout = id.ackTimeout
		}
		a.MaxRDAtomic = c.InitiatorDepth
	}
	return a, nil
}
