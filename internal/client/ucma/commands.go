package ucma

import (
	"fmt"
	"math/bits"
	"net/netip"
	"syscall"
	"time"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/abi/abitext"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/cm/rdmacm"
)

// This file has the handlers of the rdma_cm commands, which correspond to ucma.c.

func createID(c *Call, req *abi.CMCreateID, resp *abi.CMCreateIDResp) error {
	return c.ch.Do(func(ch *rdmacm.Channel) error {
		id, err := ch.Create(req.UID, req.PS, req.QPType)
		if err == nil {
			resp.ID = id.Name
		}
		return err
	})
}

func destroyID(c *Call, req *abi.CMDestroyID, resp *abi.CMDestroyIDResp) error {
	return c.withID(req.ID, func(id *rdmacm.ID) error {
		resp.EventsReported = id.Destroy()
		return nil
	})
}

func bindIP(c *Call, req *abi.CMBindIP) error {
	addr, ok := abi.FromSockaddr(&req.Addr)
	if !ok || !addr.IsValid() {
		return afnosupport
	}
	return c.withID(req.ID, func(id *rdmacm.ID) error { return id.Bind(addr) })
}

func resolveIP(c *Call, req *abi.CMResolveIP) error {
	src, ok := abi.FromSockaddr(&req.SrcAddr)
	dst, ok2 := abi.FromSockaddr(&req.DstAddr)
	if !ok || !ok2 || !dst.IsValid() {
		return syscall.EINVAL
	}
	return c.resolve(req.ID, src, dst, req.TimeoutMS)
}

// resolve finds the route to dst; src may be invalid.
func (c *Call) resolve(name uint32, src, dst netip.AddrPort, patience uint32) error {
	var from, to netip.Addr
	var id *rdmacm.ID
	local := false
	timeout := min(time.Duration(patience)*time.Millisecond, rdmacm.MaxPatience)
	err := c.withID(name, func(i *rdmacm.ID) (err error) {
		id = i
		if from, to, err = id.BeginResolve(src, dst); err != nil {
			return err
		}
		// Neither a group nor this host needs a route.
		if from, local = c.ch.CMA().Near(from, to); local {
			id.EndResolve(from, 0)
		}
		id.Patient(timeout)
		return nil
	})
	if err != nil || local {
		return err
	}
	return c.ch.Aside(func(ch Channel) error {
		c.ch = ch
		return c.route(id, from, to, timeout)
	})
}

// route finds the route to another host. Without one, the command fails.
func (c *Call) route(id *rdmacm.ID, from, to netip.Addr, timeout time.Duration) error {
	err := findRoute(c.ch, id, from, to, timeout)
	if err != nil {
		c.withID(id.Name, func(id *rdmacm.ID) error { id.AbortResolve(); return nil })
	}
	return err
}

// Resume continues the resolution of a restored identifier. Its command has ended, so a missing route is an event. Resume runs
// beside the loop.
func Resume(ch Channel, r rdmacm.Resolution) {
	if err := findRoute(ch, r.ID, r.From, r.To, r.Patience); err != nil {
		ch.OnLoop(func() { r.ID.EndResolve(r.From, protocol.Errno(err, syscall.EHOSTUNREACH)) })
	}
}

// findRoute asks the kernel for the route to another host, and ends the resolution then or later. It returns an error if there is no
// route.
func findRoute(ch Channel, id *rdmacm.ID, from, to netip.Addr, timeout time.Duration) error {
	via, err := ch.Route(from, to)
	if err != nil && !from.IsUnspecified() {
		// Without a route the kernel assumes that the address is on the link: its ARP request gets no answer, so the resolution times out.
		time.AfterFunc(timeout, func() { ch.OnLoop(func() { id.EndResolve(from, syscall.ETIMEDOUT) }) })
		return nil
	}
	if err != nil {
		return err
	}
	// As in the kernel, the event comes when the next hop is resolved, usually at once. The command does not wait for it.
	end := func(err error) { ch.OnLoop(func() { id.EndResolve(via, protocol.Errno(err, syscall.EHOSTUNREACH)) }) }
	if ch.Reach(via, to, 0) == nil {
		end(nil)
		return nil
	}
	go func() { end(ch.Reach(via, to, timeout)) }()
	return nil
}

func resolveRoute(c *Call, req *abi.CMResolveRoute) error {
	return c.withID(req.ID, func(id *rdmacm.ID) error { return id.ResolveRoute() })
}

// noIndex means that devices are matched by GUID.
const noIndex = ^uint32(0)

func queryRoute(c *Call, req *abi.CMQuery, resp *abi.CMQueryRouteResp) error {
	var q rdmacm.Query
	if err := c.lookAt(req.ID, func(id *rdmacm.ID) error { q = id.Query(); return nil }); err != nil {
		return err
	}
	*resp = routeOf(&q, c.ch.NodeGUID())
	return nil
}

// routeOf returns the answer to QUERY_ROUTE; guid is the device's.
func routeOf(q *rdmacm.Query, guid uint64) (resp abi.CMQueryRouteResp) {
	resp = abi.CMQueryRouteResp{SrcAddr: abi.ToSockaddr(q.Src), DstAddr: abi.ToSockaddr(q.Dst), IBDevIndex: noIndex}
	if !q.Device {
		return resp
	}
	resp.NodeGUID = bits.ReverseBytes64(guid)
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
	return resp
}

// maxVendor is the largest vendor ID.
const maxVendor = 1<<24 - 1

func connect(c *Call, req *abi.CMConnect) error {
	if req.ConnParam.Valid == 0 {
		return syscall.EINVAL
	}
	return c.withID(req.ID, func(id *rdmacm.ID) error {
		return id.Connect(&req.ConnParam, rdmacm.ECE{Vendor: req.ECEVendor & maxVendor, Modifier: req.ECEMod})
	})
}

func listen(c *Call, req *abi.CMListen) error {
	return c.withID(req.ID, func(id *rdmacm.ID) error { return id.Listen(int(int32(req.Backlog))) })
}

func acceptConn(c *Call, req *abi.CMAccept) error {
	return c.withID(req.ID, func(id *rdmacm.ID) error {
		return id.Accept(req.UID, &req.ConnParam, rdmacm.ECE{Vendor: req.ECEVendor & maxVendor, Modifier: req.ECEMod})
	})
}

func reject(c *Call, req *abi.CMReject) error {
	return c.withID(req.ID, func(id *rdmacm.ID) error {
		return id.Reject(req.Reason, req.PrivateData[:req.PrivateDataLen])
	})
}

func disconnect(c *Call, req *abi.CMDisconnect) error {
	return c.withID(req.ID, func(id *rdmacm.ID) error { return id.Disconnect() })
}

func initQPAttr(c *Call, req *abi.CMInitQPAttr, resp *abi.QPAttr) error {
	if req.QPState > abi.QPStateErr {
		return syscall.EINVAL
	}
	return c.lookAt(req.ID, func(id *rdmacm.ID) (err error) {
		*resp, err = id.QPAttr(req.QPState)
		return err
	})
}

func getEvent(c *Call, _ *abi.CMGetEvent, resp *abi.CMEventResp) error {
	err := c.ch.Do(func(ch *rdmacm.Channel) error {
		e, err := ch.GetEvent()
		if err == nil {
			*resp = *e
			c.Told = e
		}
		return err
	})
	if c.traced && err == nil {
		c.Result = fmt.Sprintf("event=%s id=%d status=%d", abitext.Name(eventNames, uint64(resp.Event)), resp.ID, int32(resp.Status))
	}
	return err
}

func setOption(c *Call, req *abi.CMSetOption) error {
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

func notify(c *Call, req *abi.CMNotify) error {
	return c.withID(req.ID, func(id *rdmacm.ID) error { return id.Communicated(req.Event) })
}

func joinIPMcast(c *Call, req *abi.CMJoinIPMcast, resp *abi.CMCreateIDResp) error {
	addr, ok := abi.FromSockaddr(&req.Addr)
	if !ok || !addr.IsValid() {
		return syscall.EINVAL
	}
	return c.join(req.ID, req.UID, addr.Addr(), resp)
}

// join joins a group; uid is the program's number for the membership.
func (c *Call) join(id uint32, uid uint64, group netip.Addr, resp *abi.CMCreateIDResp) error {
	return c.withID(id, func(id *rdmacm.ID) error {
		g, err := id.Join(uid, group)
		if err == nil {
			resp.ID = g.Name
		}
		return err
	})
}

func leaveMcast(c *Call, req *abi.CMDestroyID, resp *abi.CMDestroyIDResp) error {
	return c.ch.Do(func(ch *rdmacm.Channel) (err error) {
		resp.EventsReported, err = ch.Leave(req.ID)
		return err
	})
}

func writeEvent(c *Call, req *abi.CMWriteCMEvent) error {
	return c.withID(req.ID, func(id *rdmacm.ID) error { return id.Write(req.Event, req.Status, [8]byte(req.Param[:])) })
}

func migrateID(c *Call, req *abi.CMMigrateID, resp *abi.CMMigrateResp) error {
	return c.ch.Do(func(ch *rdmacm.Channel) (err error) {
		resp.EventsReported, err = ch.Migrate(req.FD, req.ID)
		return err
	})
}

// eventNames are the event names without the prefix RDMA_CM_EVENT_.
var eventNames = map[uint64]string{
	abi.CMEventAddrResolved: "ADDR_RESOLVED", abi.CMEventAddrError: "ADDR_ERROR",
	abi.CMEventRouteResolved: "ROUTE_RESOLVED", abi.CMEventRouteError: "ROUTE_ERROR",
	abi.CMEventConnectRequest: "CONNECT_REQUEST", abi.CMEventConnectResponse: "CONNECT_RESPONSE",
	abi.CMEventConnectError: "CONNECT_ERROR", abi.CMEventUnreachable: "UNREACHABLE", abi.CMEventRejected: "REJECTED",
	abi.CMEventEstablished: "ESTABLISHED", abi.CMEventDisconnected: "DISCONNECTED",
	abi.CMEventDeviceRemoval: "DEVICE_REMOVAL", abi.CMEventMulticastJoin: "MULTICAST_JOIN",
	abi.CMEventMulticastError: "MULTICAST_ERROR", abi.CMEventAddrChange: "ADDR_CHANGE",
	abi.CMEventTimewaitExit: "TIMEWAIT_EXIT", abi.CMEventUser: "USER", abi.CMEventInternal: "INTERNAL",
}
