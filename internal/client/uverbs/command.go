package uverbs

import (
	"syscall"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/device/nic"
)

// A command is a row of the table: the checks that the kernel makes before it calls the handler, and the handler.
type command struct {
	name string
	// Smallest request and response, without headers and driver data. A legacy
	// command's request begins with the response's address if it has a response.
	request, response int
	extended          bool
	answers           bool // has a response
	driver            bool // legacy: driver data follows the request
	destroys          bool // an unknown handle is ENOENT, elsewhere it is EINVAL
	flexible          bool // an array follows the request
	long              bool // is slow outside of Device.Do, or passes handles: see Brief
	left              bool // may be certain to succeed: see MaybeSure

	// run executes the call; nil means that the command is known and refused with errno.
	run   func(*Call) error
	errno syscall.Errno
}

// A Call is one command in progress: the decoded request and the answer under construction.
type Call struct {
	ctx *Context
	dev Device
	cmd *command
	raw []byte // the command as received

	// The request. in and driverIn alias the message.
	in       []byte
	driverIn []byte
	response uint64 // address
	// out and driverOut are the sizes of the response buffer and of the driver's part after it.
	out, driverOut int

	// The answer.
	resp, driverResp []byte
	stores           []protocol.Store
	passed           []passed

	// Errno is the result.
	Errno syscall.Errno
	// Args and Result are the texts for a trace; empty unless the call is traced.
	Args, Result string
	traced       bool
}

// passed is a handle to pass to the client.
type passed struct {
	handle Handle
	at     protocol.FD
}

// lookup returns the row for a command word, like uapi_get_method.
func lookup(word uint32) (*command, error) {
	number := word & abi.CommandMask
	if word&^uint32(abi.FlagExtended|abi.CommandMask) != 0 {
		return nil, syscall.EINVAL
	}
	if word&abi.FlagExtended != 0 {
		if number >= abi.NumExCmd {
			return nil, syscall.EOPNOTSUPP
		}
		if c := extendedCommands[number]; c != nil {
			return c, nil
		}
		return nil, syscall.EOPNOTSUPP
	}
	if number >= abi.NumCmd {
		return nil, syscall.EINVAL
	}
	if c := legacyCommands[number]; c != nil {
		return c, nil
	}
	return nil, syscall.EOPNOTSUPP
}

// Brief reports whether the loop may run a whole command: it does nothing slow outside of Do, and passes no handles.
func Brief(b []byte) bool {
	var hdr abi.CmdHeader
	if !abi.Decode(b, &hdr) {
		return false
	}
	cmd, err := lookup(hdr.Command)
	return err == nil && !cmd.long
}

// TakesEvents reports whether a command withdraws unread events of an object: it destroys a completion queue, a queue pair or a
// shared receive queue.
func TakesEvents(b []byte) bool {
	var hdr abi.CmdHeader
	if !abi.Decode(b, &hdr) {
		return false
	}
	switch hdr.Command {
	case abi.CmdDestroyCQ, abi.CmdDestroyQP, abi.CmdDestroySRQ:
		return true
	}
	return false
}

// MaybeSure splits the first command off b, and reports whether there is one for whose answer a client need not wait.
func MaybeSure(b []byte) (first, rest []byte, ok bool) {
	var hdr abi.CmdHeader
	if !abi.Decode(b, &hdr) {
		return nil, nil, false
	}
	n := int(hdr.InWords) * 4
	cmd, err := lookup(hdr.Command)
	if err != nil || !cmd.left || n < abi.Size[abi.CmdHeader]() || n > len(b) {
		return nil, nil, false
	}
	return b[:n:n], b[n:], true
}

// parse decodes one write() and checks it like ib_uverbs_write and verify_hdr. It sets c.cmd as soon as the command is known, so
// that a refusal can be traced.
func (c *Call) parse(b []byte) error {
	var hdr abi.CmdHeader
	if !abi.Decode(b, &hdr) {
		return syscall.EINVAL
	}
	cmd, err := lookup(hdr.Command)
	if err != nil {
		return err
	}
	c.cmd = cmd
	body := b[abi.Size[abi.CmdHeader]():]
	if cmd.run == nil {
		return cmd.errno
	}
	if cmd.extended {
		err = c.splitExtended(&hdr, body)
	} else {
		err = c.splitLegacy(&hdr, body, len(b))
	}
	return err
}

// splitLegacy checks a legacy command, whose sizes are in 4-byte words and include the header.
func (c *Call) splitLegacy(hdr *abi.CmdHeader, body []byte, total int) error {
	cmd := c.cmd
	if int(hdr.InWords)*4 != total {
		return syscall.EINVAL
	}
	if len(body) < cmd.request {
		return syscall.ENOSPC
	}
	out := int(hdr.OutWords) * 4
	if out < cmd.response {
		return syscall.ENOSPC
	}
	c.in = body
	if cmd.driver {
		c.in, c.driverIn = body[:cmd.request], body[cmd.request:]
	}
	if cmd.answers {
		var r abi.GetContext // every request with an answer begins like this
		abi.Decode(body, &r)
		c.response = r.Response
		c.out = out
		if cmd.driver {
			c.out, c.driverOut = cmd.response, out-cmd.response
		}
	}
	return nil
}

// splitExtended checks an extended command, whose sizes are in 8-byte words without the headers.
func (c *Call) splitExtended(hdr *abi.CmdHeader, body []byte) error {
	cmd := c.cmd
	var ex abi.ExCmdHeader
	if !abi.Decode(body, &ex) {
		return syscall.EINVAL
	}
	body = body[abi.Size[abi.ExCmdHeader]():]
	in := int(hdr.InWords) * 8
	if in+int(ex.ProviderInWords)*8 != len(body) {
		return syscall.EINVAL
	}
	if in < cmd.request {
		return syscall.ENOSPC
	}
	if ex.Reserved != 0 {
		return syscall.EINVAL
	}
	c.out, c.driverOut = int(hdr.OutWords)*8, int(ex.ProviderOutWords)*8
	switch {
	case ex.Response == 0 && c.out+c.driverOut != 0,
		ex.Response != 0 && c.out+c.driverOut == 0:
		return syscall.EINVAL
	case ex.Response != 0 && c.out < cmd.response:
		return syscall.ENOSPC
	}
	c.response = ex.Response
	c.in, c.driverIn = body[:in], body[in:]
	return nil
}

func zero(b []byte) bool {
	for _, x := range b {
		if x != 0 {
			return false
		}
	}
	return true
}

// request decodes the request into v, like uverbs_request. Missing fields at the end of an extended request are zero. Additional
// bytes must be zero: otherwise a newer program uses a feature that this daemon does not know.
func request[T abi.Struct](c *Call, v *T) error {
	abi.Decode(c.in, v)
	if n := abi.Size[T](); len(c.in) > n && !c.cmd.flexible && !zero(c.in[n:]) {
		return syscall.EOPNOTSUPP
	}
	return nil
}

// needDriverOut checks, like rxe, that the driver's part of the answer fits.
func needDriverOut[T abi.Struct](c *Call) error {
	if c.driverOut < abi.Size[T]() {
		return syscall.EINVAL
	}
	return nil
}

// driverAnswer sets the driver's part of the answer.
func driverAnswer[T abi.Struct](c *Call, v *T) { c.driverResp = abi.Encode(nil, v) }

// pass passes a handle; the client stores its own number for it at offset off of the response.
func (c *Call) pass(h Handle, off uint64, kind, id uint32) {
	c.passed = append(c.passed, passed{h, protocol.FD{Address: c.response + off, Kind: kind, ID: id}})
}

// openEvents returns the function with which the NIC opens a sink; it stores the client's handle in h.
func (c *Call) openEvents(h *Handle) func() (nic.EventSink, error) {
	return func() (nic.EventSink, error) {
		sink, handle, err := c.dev.OpenEvents()
		*h = handle
		return sink, err
	}
}

// maxFill limits the zeros after a response. The kernel clears the whole buffer of the program, but a reply must fit into a message.
const maxFill = 4096

// Answer builds the reply. Responses are cut to the program's buffer, and zeros follow shorter ones, like uverbs_response.
func (c *Call) Answer(r *protocol.ReplyBuilder) {
	if c.Errno != 0 {
		return
	}
	if c.cmd.answers && c.response != 0 {
		core := fit(c.resp, c.out)
		r.Store(c.response, append(core, fit(c.driverResp, min(c.driverOut, len(c.driverResp)))...))
	}
	for _, s := range c.stores {
		r.Store(s.Address, s.Data)
	}
	for _, p := range c.passed {
		r.FD(p.at)
	}
}

// fit cuts or fills b to n bytes.
func fit(b []byte, n int) []byte {
	if len(b) >= n {
		return b[:n:n]
	}
	return append(b[:len(b):len(b)], make([]byte, min(n-len(b), maxFill))...)
}
