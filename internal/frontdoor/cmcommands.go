package frontdoor

import (
	"fmt"
	"math/bits"
	"net/netip"
	"syscall"
	"time"

	"vrdma/internal/abi"
	"vrdma/internal/rdmacm"
)

// Handlers of the rdma_cm commands: what ucma.c does around the calls of cma.c.

func cmCreateID(c *cmCall, req *abi.CMCreateID, resp *abi.CMCreateIDResp) error {
	return c.ses.do(func(ch *rdmacm.Channel) error {
		id, err := ch.Create(req.UID, req.PS, req.QPType)
		if err == nil {
			resp.ID = id.Name
		}
		return err
	})
}

func cmDestroyID(c *cmCall, req *abi.CMDestroyID, resp *abi.CMDestroyIDResp) error {
	return c.withID(req.ID, func(id *rdmacm.ID) error {
		resp.EventsReported = id.Destroy()
		return nil
	})
}

func cmBindIP(c *cmCall, req *abi.CMBindIP) error {
	addr, ok := fromSockaddr(&req.Addr)
	if !ok || !addr.IsValid() {
		return afnosupport
	}
	return c.withID(req.ID, func(id *rdmacm.ID) error { return id.Bind(addr) })
}

func cmResolveIP(c *cmCall, req *abi.CMResolveIP) error {
	src, ok := fromSockaddr(&req.SrcAddr)
	dst, ok2 := fromSockaddr(&req.DstAddr)
	if !ok || !ok2 || !dst.IsValid() {
		return syscall.EINVAL
	}
	return c.resolve(req.ID, src, dst, req.TimeoutMS)
}

// resolve looks for the way to dst; src may be none.
func (c *cmCall) resolve(name uint32, src, dst netip.AddrPort, patience uint32) error {
	var from, to netip.Addr
	local := false
	err := c.withID(name, func(id *rdmacm.ID) (err error) {
		if from, to, err = id.BeginResolve(src, dst); err != nil {
			return err
		}
		// A group needs no way to it, no more than this host does.
		if from, local = c.ses.srv.cfg.CMA.Near(from, to); local {
			id.EndResolve(from, 0)
		}
		return nil
	})
	if err != nil || local {
		return err
	}
	srv := c.ses.srv
	var id *rdmacm.ID
	if err := c.withID(name, func(i *rdmacm.ID) error { id = i; return nil }); err != nil {
		return err
	}
	timeout := min(time.Duration(patience)*time.Millisecond, maxResolve)
	via, err := srv.cfg.Route(from, to)
	if err != nil && !from.IsUnspecified() {
		// To the kernel, what has no route but an interface is on that interface's link:
		// it calls, and nobody answers.
		time.AfterFunc(timeout, func() { srv.onLoop(func() { id.EndResolve(from, syscall.ETIMEDOUT) }) })
		return nil
	}
	if err != nil {
		c.withID(name, func(id *rdmacm.ID) error { id.AbortResolve(); return nil })
		return err
	}
	// The event comes when the next station on the way is known, as from the kernel:
	// at once, usually. The command does not wait for it.
	end := func(err error) { srv.onLoop(func() { id.EndResolve(via, errnoOf(err, syscall.EHOSTUNREACH)) }) }
	if srv.cfg.Reach(via, to, 0) == nil {
		end(nil)
		return nil
	}
	go func() { end(srv.cfg.Reach(via, to, timeout)) }()
	return nil
}

// maxResolve bounds the patience of a program.
const maxResolve = time.Minute

func cmResolveRoute(c *cmCall, req *abi.CMResolveRoute) error {
	return c.withID(req.ID, func(id *rdmacm.ID) error { return id.ResolveRoute() })
}

// noIndex says that devices are matched by their GUID.
const noIndex = ^uint32(0)

func cmQueryRoute(c *cmCall, req *abi.CMQuery, resp *abi.CMQueryRouteResp) error {
	var q rdmacm.Query
	if err := c.withID(req.ID, func(id *rdmacm.ID) error { q = id.Query(); return nil }); err != nil {
		return err
	}
	*resp = abi.CMQueryRouteResp{SrcAddr: toSockaddr(q.Src), DstAddr: toSockaddr(q.Dst), IBDevIndex: noIndex}
	if !q.Device {
		return nil
	}
	resp.NodeGUID = bits.ReverseBytes64(c.ses.srv.cfg.NIC.NodeGUID)
	resp.PortNum = 1
	r := &resp.IBRoute
	r.SGID, r.DGID, r.PKey = q.SGID, q.DGID, 0xffff
	if q.Routed {
		resp.NumPaths = 1
		const exactly = 2
		r.Reversible, r.NumbPath, r.HopLimit, r.TrafficClass = 1, 1, 64, q.TOS
		r.MTU, r.MTUSelector = uint32(q.MTU), exactly
		r.Rate, r.RateSelector = 16, exactly
		r.PacketLifeTime, r.PacketLifeTimeSelector = q.Life, exactly
	}
	return nil
}

// maxVendor is the largest number of a vendor.
const maxVendor = 1<<24 - 1

func cmConnect(c *cmCall, req *abi.CMConnect) error {
	if req.ConnParam.Valid == 0 {
		return syscall.EINVAL
	}
	return c.withID(req.ID, func(id *rdmacm.ID) error {
		return id.Connect(&req.ConnParam, rdmacm.ECE{Vendor: req.ECEVendor & maxVendor, Modifier: req.ECEMod})
	})
}

func cmListen(c *cmCall, req *abi.CMListen) error {
	return c.withID(req.ID, func(id *rdmacm.ID) error { return id.Listen(int(int32(req.Backlog))) })
}

func cmAcceptConn(c *cmCall, req *abi.CMAccept) error {
	return c.withID(req.ID, func(id *rdmacm.ID) error {
		return id.Accept(req.UID, &req.ConnParam, rdmacm.ECE{Vendor: req.ECEVendor & maxVendor, Modifier: req.ECEMod})
	})
}

func cmReject(c *cmCall, req *abi.CMReject) error {
	return c.withID(req.ID, func(id *rdmacm.ID) error {
		return id.Reject(req.Reason, req.PrivateData[:req.PrivateDataLen])
	})
}

func cmDisconnect(c *cmCall, req *abi.CMDisconnect) error {
	return c.withID(req.ID, func(id *rdmacm.ID) error { return id.Disconnect() })
}

func cmInitQPAttr(c *cmCall, req *abi.CMInitQPAttr, resp *abi.QPAttr) error {
	if req.QPState > abi.QPStateErr {
		return syscall.EINVAL
	}
	return c.withID(req.ID, func(id *rdmacm.ID) (err error) {
		*resp, err = id.QPAttr(req.QPState)
		return err
	})
}

func cmGetEvent(c *cmCall, _ *abi.CMGetEvent, resp *abi.CMEventResp) error {
	err := c.ses.do(func(ch *rdmacm.Channel) error {
		e, err := ch.GetEvent()
		if err == nil {
			*resp = *e
		}
		return err
	})
	if c.traced && err == nil {
		c.result = fmt.Sprintf("event=%s id=%d status=%d", nameText(cmEventNames, uint64(resp.Event)), resp.ID, int32(resp.Status))
	}
	return err
}

func cmSetOption(c *cmCall, req *abi.CMSetOption) error {
	if int(req.OptLen) != len(c.behind) {
		return syscall.EINVAL
	}
	return c.withID(req.ID, func(id *rdmacm.ID) error {
		switch {
		case req.Level == abi.CMOptionID:
			return id.SetOption(req.OptName, c.behind)
		case req.Level == abi.CMOptionIB && req.OptName == abi.CMOptionIBPath:
			return id.SetPath(c.behind)
		}
		return syscall.ENOSYS
	})
}

func cmNotify(c *cmCall, req *abi.CMNotify) error {
	return c.withID(req.ID, func(id *rdmacm.ID) error { return id.Communicated(req.Event) })
}

func cmJoinIPMcast(c *cmCall, req *abi.CMJoinIPMcast, resp *abi.CMCreateIDResp) error {
	addr, ok := fromSockaddr(&req.Addr)
	if !ok || !addr.IsValid() {
		return syscall.EINVAL
	}
	return c.join(req.ID, req.UID, addr.Addr(), resp)
}

// join makes an identifier a member of a group; uid is the program's name for it.
func (c *cmCall) join(id uint32, uid uint64, group netip.Addr, resp *abi.CMCreateIDResp) error {
	return c.withID(id, func(id *rdmacm.ID) error {
		g, err := id.Join(uid, group)
		if err == nil {
			resp.ID = g.Name
		}
		return err
	})
}

func cmLeaveMcast(c *cmCall, req *abi.CMDestroyID, resp *abi.CMDestroyIDResp) error {
	return c.ses.do(func(ch *rdmacm.Channel) (err error) {
		resp.EventsReported, err = ch.Leave(req.ID)
		return err
	})
}

func cmWriteEvent(c *cmCall, req *abi.CMWriteCMEvent) error {
	return c.withID(req.ID, func(id *rdmacm.ID) error { return id.Write(req.Event, req.Status, [8]byte(req.Param[:])) })
}

func cmMigrateID(c *cmCall, req *abi.CMMigrateID, resp *abi.CMMigrateResp) error {
	return c.ses.do(func(ch *rdmacm.Channel) (err error) {
		resp.EventsReported, err = ch.Migrate(req.FD, req.ID)
		return err
	})
}

// cmEventNames are the events without their RDMA_CM_EVENT_ prefix.
var cmEventNames = map[uint64]string{
	abi.CMEventAddrResolved: "ADDR_RESOLVED", abi.CMEventAddrError: "ADDR_ERROR",
	abi.CMEventRouteResolved: "ROUTE_RESOLVED", abi.CMEventRouteError: "ROUTE_ERROR",
	abi.CMEventConnectRequest: "CONNECT_REQUEST", abi.CMEventConnectResponse: "CONNECT_RESPONSE",
	abi.CMEventConnectError: "CONNECT_ERROR", abi.CMEventUnreachable: "UNREACHABLE", abi.CMEventRejected: "REJECTED",
	abi.CMEventEstablished: "ESTABLISHED", abi.CMEventDisconnected: "DISCONNECTED",
	abi.CMEventDeviceRemoval: "DEVICE_REMOVAL", abi.CMEventMulticastJoin: "MULTICAST_JOIN",
	abi.CMEventMulticastError: "MULTICAST_ERROR", abi.CMEventAddrChange: "ADDR_CHANGE",
	abi.CMEventTimewaitExit: "TIMEWAIT_EXIT", abi.CMEventUser: "USER", abi.CMEventInternal: "INTERNAL",
}
