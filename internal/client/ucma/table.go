package ucma

import (
	"syscall"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/abi/abitext"
)

// A command is a row of the table of rdma_cm commands.
type command struct {
	name     string
	response int // smallest response buffer that the kernel accepts
	run      func(*Call) error
}

// commands are the commands by number. Those without a handler return ENOSYS. InfiniBand addresses are not supported: librdmacm
// tries to bind one, and then uses the older commands like BIND_IP.
var commands = [abi.NumCMCmd]command{
	abi.CMCmdCreateID: answer("CM_CREATE_ID", func(r *abi.CMCreateID) uint64 { return r.Response }, createID),
	abi.CMCmdDestroyID: answer("CM_DESTROY_ID", func(r *abi.CMDestroyID) uint64 { return r.Response },
		destroyID),
	abi.CMCmdBindIP:       accept("CM_BIND_IP", bindIP),
	abi.CMCmdResolveIP:    accept("CM_RESOLVE_IP", resolveIP),
	abi.CMCmdResolveRoute: accept("CM_RESOLVE_ROUTE", resolveRoute),
	abi.CMCmdQueryRoute: answer("CM_QUERY_ROUTE", func(r *abi.CMQuery) uint64 { return r.Response }, queryRoute).
		atLeast(queryRouteMin),
	abi.CMCmdConnect:    accept("CM_CONNECT", connect),
	abi.CMCmdListen:     accept("CM_LISTEN", listen),
	abi.CMCmdAccept:     accept("CM_ACCEPT", acceptConn),
	abi.CMCmdReject:     accept("CM_REJECT", reject),
	abi.CMCmdDisconnect: accept("CM_DISCONNECT", disconnect),
	abi.CMCmdInitQPAttr: answer("CM_INIT_QP_ATTR", func(r *abi.CMInitQPAttr) uint64 { return r.Response },
		initQPAttr),
	abi.CMCmdGetEvent: answer("CM_GET_EVENT", func(r *abi.CMGetEvent) uint64 { return r.Response }, getEvent).
		atLeast(eventMin),
	abi.CMCmdSetOption: accept("CM_SET_OPTION", setOption),
	abi.CMCmdNotify:    accept("CM_NOTIFY", notify),
	abi.CMCmdJoinIPMcast: answer("CM_JOIN_IP_MCAST", func(r *abi.CMJoinIPMcast) uint64 { return r.Response },
		joinIPMcast),
	abi.CMCmdLeaveMcast: answer("CM_LEAVE_MCAST", func(r *abi.CMDestroyID) uint64 { return r.Response },
		leaveMcast),
	abi.CMCmdQuery:       {name: "CM_QUERY", run: query},
	abi.CMCmdBind:        accept("CM_BIND", bind),
	abi.CMCmdResolveAddr: accept("CM_RESOLVE_ADDR", resolveAddr),
	abi.CMCmdJoinMcast: answer("CM_JOIN_MCAST", func(r *abi.CMJoinMcast) uint64 { return r.Response },
		joinMcast),
	abi.CMCmdWriteCMEvent: accept("CM_WRITE_CM_EVENT", writeEvent),
	abi.CMCmdMigrateID:    answer("CM_MIGRATE_ID", func(r *abi.CMMigrateID) uint64 { return r.Response }, migrateID),

	abi.CMCmdGetOption:        {name: "CM_GET_OPTION"}, // not implemented by any kernel
	abi.CMCmdResolveIBService: {name: "CM_RESOLVE_IB_SERVICE"},
}

const (
	// queryRouteMin is offsetof(struct rdma_ucm_query_route_resp, ibdev_index).
	queryRouteMin = 200
	// eventMin is the size of the response in older kernels, without the ECE.
	eventMin = 324
)

// answer returns a row for a command with a response.
func answer[Req, Resp abi.Struct](name string, at func(*Req) uint64, run func(*Call, *Req, *Resp) error) command {
	return command{name: name, response: abi.Size[Resp](), run: func(c *Call) error {
		var req Req
		var resp Resp
		abi.Decode(c.in, &req)
		c.at = at(&req)
		if c.traced {
			c.Args = abitext.Arguments(&req)
		}
		if err := run(c, &req, &resp); err != nil {
			return err
		}
		c.resp = abi.Encode(nil, &resp)
		if c.traced && c.Result == "" {
			c.Result = abitext.Results(&resp)
		}
		return nil
	}}
}

// accept returns a row for a command without a response.
func accept[Req abi.Struct](name string, run func(*Call, *Req) error) command {
	return command{name: name, run: func(c *Call) error {
		var req Req
		abi.Decode(c.in, &req)
		if c.traced {
			c.Args = abitext.Arguments(&req)
		}
		return run(c, &req)
	}}
}

// atLeast sets the smallest response buffer, for a response that may be cut.
func (c command) atLeast(n int) command {
	c.response = n
	return c
}

// afnosupport is the kernel's error for an unknown address family.
const afnosupport = syscall.EAFNOSUPPORT
