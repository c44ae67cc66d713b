package uverbs

import (
	"syscall"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/abi/abitext"
)

// The kernel's commands, by number. The kernel has no handler for numbers without a row. Sizes are those of the structs; a row
// has a smaller size where the kernel accepts a shorter extended struct.
var (
	legacyCommands = [abi.NumCmd]*command{
		abi.CmdGetContext:        answer("GET_CONTEXT", getContext).withDriver().lasting(),
		abi.CmdQueryDevice:       answer("QUERY_DEVICE", queryDevice),
		abi.CmdQueryPort:         answer("QUERY_PORT", queryPort),
		abi.CmdAllocPD:           answer("ALLOC_PD", allocPD).withDriver(),
		abi.CmdDeallocPD:         accept("DEALLOC_PD", deallocPD).destroying(),
		abi.CmdCreateAH:          answer("CREATE_AH", createAH).withDriver(),
		abi.CmdDestroyAH:         accept("DESTROY_AH", destroyAH).destroying(),
		abi.CmdRegMR:             answer("REG_MR", regMR).withDriver().lasting(),
		abi.CmdReregMR:           refused("REREG_MR", syscall.EOPNOTSUPP), // the rxe provider has none
		abi.CmdDeregMR:           accept("DEREG_MR", deregMR).destroying(),
		abi.CmdAllocMW:           answer("ALLOC_MW", allocMW).withDriver(),
		abi.CmdDeallocMW:         accept("DEALLOC_MW", deallocMW).destroying(),
		abi.CmdCreateCompChannel: answer("CREATE_COMP_CHANNEL", createCompChannel).lasting(),
		abi.CmdCreateCQ:          answer("CREATE_CQ", createCQ).withDriver(),
		abi.CmdResizeCQ:          answer("RESIZE_CQ", resizeCQ).withDriver(),
		abi.CmdDestroyCQ:         answer("DESTROY_CQ", destroyCQ).destroying(),
		abi.CmdReqNotifyCQ:       accept("REQ_NOTIFY_CQ", reqNotifyCQ),
		abi.CmdCreateQP:          answer("CREATE_QP", createQP).withDriver(),
		abi.CmdQueryQP:           answer("QUERY_QP", queryQP),
		abi.CmdModifyQP:          accept("MODIFY_QP", modifyQP).maybeSure(),
		abi.CmdDestroyQP:         answer("DESTROY_QP", destroyQP).destroying(),
		abi.CmdPostSend:          answer("POST_SEND", postSend).withArray(),
		abi.CmdAttachMcast:       accept("ATTACH_MCAST", attachMcast),
		abi.CmdDetachMcast:       accept("DETACH_MCAST", detachMcast),
		abi.CmdCreateSRQ:         answer("CREATE_SRQ", createSRQ).withDriver(),
		abi.CmdModifySRQ:         accept("MODIFY_SRQ", modifySRQ).withDriver(),
		abi.CmdQuerySRQ:          answer("QUERY_SRQ", querySRQ),
		abi.CmdDestroySRQ:        answer("DESTROY_SRQ", destroySRQ).destroying(),
		abi.CmdCreateXSRQ:        answer("CREATE_XSRQ", createXSRQ).withDriver(),

		// Posting and polling by system call: the rxe provider uses the rings instead, and the kernel's rxe does not support
		// these commands.
		abi.CmdPollCQ:      refused("POLL_CQ", syscall.EOPNOTSUPP),
		abi.CmdPeekCQ:      refused("PEEK_CQ", syscall.EOPNOTSUPP),
		abi.CmdPostRecv:    refused("POST_RECV", syscall.EOPNOTSUPP),
		abi.CmdPostSRQRecv: refused("POST_SRQ_RECV", syscall.EOPNOTSUPP),

		// rxe does not support XRC.
		abi.CmdOpenXRCD:  refused("OPEN_XRCD", syscall.EOPNOTSUPP),
		abi.CmdCloseXRCD: refused("CLOSE_XRCD", syscall.EOPNOTSUPP),
		abi.CmdOpenQP:    refused("OPEN_QP", syscall.EOPNOTSUPP),

		// Numbers that no kernel has implemented.
		abi.CmdModifyAH: refused("MODIFY_AH", syscall.EOPNOTSUPP),
		abi.CmdQueryAH:  refused("QUERY_AH", syscall.EOPNOTSUPP),
		abi.CmdRegSMR:   refused("REG_SMR", syscall.EOPNOTSUPP),
		abi.CmdQueryMR:  refused("QUERY_MR", syscall.EOPNOTSUPP),
		abi.CmdBindMW:   refused("BIND_MW", syscall.EOPNOTSUPP),
	}

	extendedCommands = [abi.NumExCmd]*command{
		abi.ExCmdQueryDevice: answer("EX_QUERY_DEVICE", exQueryDevice).
			extend(abi.Size[abi.ExQueryDevice](), abi.Size[abi.QueryDeviceResp]()+8),
		abi.ExCmdCreateCQ: answer("EX_CREATE_CQ", exCreateCQ).
			extend(abi.Size[abi.ExCreateCQ](), abi.Size[abi.ExCreateCQResp]()),
		abi.ExCmdCreateQP: answer("EX_CREATE_QP", exCreateQP).
			extend(exCreateQPMin, abi.Size[abi.ExCreateQPResp]()),
		abi.ExCmdModifyQP: answer("EX_MODIFY_QP", exModifyQP).
			extend(abi.Size[abi.ModifyQP](), abi.Size[abi.ExModifyQPResp]()),

		// Flow steering, work queues and RSS are for raw Ethernet, moderation for interrupts; rxe has neither.
		abi.ExCmdCreateFlow:       refused("EX_CREATE_FLOW", syscall.EOPNOTSUPP),
		abi.ExCmdDestroyFlow:      refused("EX_DESTROY_FLOW", syscall.EOPNOTSUPP),
		abi.ExCmdCreateWQ:         refused("EX_CREATE_WQ", syscall.EOPNOTSUPP),
		abi.ExCmdModifyWQ:         refused("EX_MODIFY_WQ", syscall.EOPNOTSUPP),
		abi.ExCmdDestroyWQ:        refused("EX_DESTROY_WQ", syscall.EOPNOTSUPP),
		abi.ExCmdCreateRWQIndTbl:  refused("EX_CREATE_RWQ_IND_TBL", syscall.EOPNOTSUPP),
		abi.ExCmdDestroyRWQIndTbl: refused("EX_DESTROY_RWQ_IND_TBL", syscall.EOPNOTSUPP),
		abi.ExCmdModifyCQ:         refused("EX_MODIFY_CQ", syscall.EOPNOTSUPP),
	}
)

// exCreateQPMin is offsetofend(struct ib_uverbs_ex_create_qp, comp_mask).
const exCreateQPMin = 52

// answer returns a row for a command with a response.
func answer[Req, Resp abi.Struct](name string, run func(*Call, *Req, *Resp) error) *command {
	return &command{
		name: name, request: abi.Size[Req](), response: abi.Size[Resp](), answers: true,
		run: func(c *Call) error {
			var req Req
			var resp Resp
			if err := request(c, &req); err != nil {
				return err
			}
			if c.traced {
				c.Args = abitext.Arguments(&req)
			}
			if err := run(c, &req, &resp); err != nil {
				return err
			}
			c.resp = abi.Encode(nil, &resp)
			if c.traced {
				c.Result = abitext.Results(&resp)
			}
			return nil
		},
	}
}

// accept returns a row for a command without a response.
func accept[Req abi.Struct](name string, run func(*Call, *Req) error) *command {
	return &command{
		name: name, request: abi.Size[Req](),
		run: func(c *Call) error {
			var req Req
			if err := request(c, &req); err != nil {
				return err
			}
			if c.traced {
				c.Args = abitext.Arguments(&req)
			}
			return run(c, &req)
		},
	}
}

// refused returns a row for a known command that is not supported.
func refused(name string, errno syscall.Errno) *command {
	return &command{name: name, errno: errno}
}

func (c *command) withDriver() *command { c.driver = true; return c }
func (c *command) withArray() *command  { c.flexible = true; return c }
func (c *command) lasting() *command    { c.long = true; return c }
func (c *command) maybeSure() *command  { c.left = true; return c }
func (c *command) destroying() *command { c.destroys = true; return c }

// extend turns c into the row of an extended command with the smallest request and response that the kernel accepts.
func (c *command) extend(request, response int) *command {
	c.extended, c.request, c.response = true, request, response
	return c
}
