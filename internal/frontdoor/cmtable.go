package frontdoor

import (
	"syscall"

	"vrdma/internal/abi"
)

// A cmCommand is a row of the table of rdma_cm commands.
type cmCommand struct {
	name     string
	response int // the smallest room for a response that the kernel takes
	run      func(*cmCall) error
}

// cmCommands are the commands by number. Those without a handler are answered with
// ENOSYS. There are no addresses of InfiniBand here: librdmacm tries to bind one, and then
// uses the older commands, of the BIND_IP family.
var cmCommands = [abi.NumCMCmd]cmCommand{
	abi.CMCmdCreateID: cmAnswer("CM_CREATE_ID", func(r *abi.CMCreateID) uint64 { return r.Response }, cmCreateID),
	abi.CMCmdDestroyID: cmAnswer("CM_DESTROY_ID", func(r *abi.CMDestroyID) uint64 { return r.Response },
		cmDestroyID),
	abi.CMCmdBindIP:       cmAccept("CM_BIND_IP", cmBindIP),
	abi.CMCmdResolveIP:    cmAccept("CM_RESOLVE_IP", cmResolveIP),
	abi.CMCmdResolveRoute: cmAccept("CM_RESOLVE_ROUTE", cmResolveRoute),
	abi.CMCmdQueryRoute: cmAnswer("CM_QUERY_ROUTE", func(r *abi.CMQuery) uint64 { return r.Response }, cmQueryRoute).
		atLeast(queryRouteMin),
	abi.CMCmdConnect:    cmAccept("CM_CONNECT", cmConnect),
	abi.CMCmdListen:     cmAccept("CM_LISTEN", cmListen),
	abi.CMCmdAccept:     cmAccept("CM_ACCEPT", cmAcceptConn),
	abi.CMCmdReject:     cmAccept("CM_REJECT", cmReject),
	abi.CMCmdDisconnect: cmAccept("CM_DISCONNECT", cmDisconnect),
	abi.CMCmdInitQPAttr: cmAnswer("CM_INIT_QP_ATTR", func(r *abi.CMInitQPAttr) uint64 { return r.Response },
		cmInitQPAttr),
	abi.CMCmdGetEvent: cmAnswer("CM_GET_EVENT", func(r *abi.CMGetEvent) uint64 { return r.Response }, cmGetEvent).
		atLeast(eventMin),
	abi.CMCmdSetOption: cmAccept("CM_SET_OPTION", cmSetOption),
	abi.CMCmdNotify:    cmAccept("CM_NOTIFY", cmNotify),
	abi.CMCmdJoinIPMcast: cmAnswer("CM_JOIN_IP_MCAST", func(r *abi.CMJoinIPMcast) uint64 { return r.Response },
		cmJoinIPMcast),
	abi.CMCmdLeaveMcast: cmAnswer("CM_LEAVE_MCAST", func(r *abi.CMDestroyID) uint64 { return r.Response },
		cmLeaveMcast),
	abi.CMCmdQuery:       {name: "CM_QUERY", run: cmQuery},
	abi.CMCmdBind:        cmAccept("CM_BIND", cmBind),
	abi.CMCmdResolveAddr: cmAccept("CM_RESOLVE_ADDR", cmResolveAddr),
	abi.CMCmdJoinMcast: cmAnswer("CM_JOIN_MCAST", func(r *abi.CMJoinMcast) uint64 { return r.Response },
		cmJoinMcast),
	abi.CMCmdWriteCMEvent: cmAccept("CM_WRITE_CM_EVENT", cmWriteEvent),
	abi.CMCmdMigrateID:    cmAnswer("CM_MIGRATE_ID", func(r *abi.CMMigrateID) uint64 { return r.Response }, cmMigrateID),

	abi.CMCmdGetOption:        {name: "CM_GET_OPTION"}, // no kernel has it
	abi.CMCmdResolveIBService: {name: "CM_RESOLVE_IB_SERVICE"},
}

const (
	// queryRouteMin is offsetof(struct rdma_ucm_query_route_resp, ibdev_index).
	queryRouteMin = 200
	// eventMin is what the response had before it grew an ECE.
	eventMin = 324
)

// cmAnswer is a row for a command with a response.
func cmAnswer[Req, Resp abi.Struct](name string, at func(*Req) uint64, run func(*cmCall, *Req, *Resp) error) cmCommand {
	return cmCommand{name: name, response: abi.Size[Resp](), run: func(c *cmCall) error {
		var req Req
		var resp Resp
		abi.Decode(c.in, &req)
		c.at = at(&req)
		if c.traced {
			c.args = arguments(&req)
		}
		if err := run(c, &req, &resp); err != nil {
			return err
		}
		c.resp = abi.Encode(nil, &resp)
		if c.traced && c.result == "" {
			c.result = results(&resp)
		}
		return nil
	}}
}

// cmAccept is a row for a command without one.
func cmAccept[Req abi.Struct](name string, run func(*cmCall, *Req) error) cmCommand {
	return cmCommand{name: name, run: func(c *cmCall) error {
		var req Req
		abi.Decode(c.in, &req)
		if c.traced {
			c.args = arguments(&req)
		}
		return run(c, &req)
	}}
}

// atLeast makes a row for a response that may be cut.
func (c cmCommand) atLeast(n int) cmCommand {
	c.response = n
	return c
}

// afnosupport is what the kernel says to an address that it does not know.
const afnosupport = syscall.EAFNOSUPPORT
