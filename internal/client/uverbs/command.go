package uverbs

import (
	"syscall"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/device/nic"
)

// A command is a row of the table: what the kernel would check before it calls the
// handler, and the handler.
type command struct {
	name string
	// Smallest request and response, without headers and driver data. A legacy
	// command's request begins with the response's address if it has a response.
	request, response int
	extended          bool
	answers           bool // has a response
	driver            bool // legacy: what follows the request is the driver's
	destroys          bool // an unknown handle is ENOENT, elsewhere it is EINVAL
	flexible          bool // the request is followed by an array
	long              bool // takes long outside Device.Do, or passes handles: see Brief
	left              bool // may be sure to succeed: see MaybeSure

	// run handles the call; nil means that we know the command and refuse it
	// with errno.
	run   func(*Call) error
	errno syscall.Errno
}

// A Call is one command on its way: the request taken apart, and the answer as it
// is put together.
type Call struct {
	ctx *Context
	dev Device
	cmd *command
	raw []byte // the command as it came

	// The request. in and driverIn alias the message.
	in       []byte
	driverIn []byte
	response uint64 // address
	// Room for the response and, right behind it, for the driver's part of it.
	out, driverOut int

	// The answer.
	resp, driverResp []byte
	stores           []protocol.Store
	passed           []passed

	// Errno is the outcome.
	Errno syscall.Errno
	// Args and Result are what a trace says about it; empty unless it is traced.
	Args, Result string
	traced       bool
}

// passed is a handle that goes to the client.
type passed struct {
	handle Handle
	at     protocol.FD
}

// lookup finds the row for a command word, as uapi_get_method does.
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

// Brief reports whether the whole of a command may be run where Device.Do runs its parts: it
// does nothing outside Do that takes long, and passes no handles.
func Brief(b []byte) bool {
	var hdr abi.CmdHeader
	if !abi.Decode(b, &hdr) {
		return false
	}
	cmd, err := lookup(hdr.Command)
	return err == nil && !cmd.long
}

// TakesEvents reports whether a command takes back what the client has not read of an object's
// events: it destroys a completion queue, a queue pair or a shared receive queue.
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

// MaybeSure cuts the first command off b, and reports whether there is one that a client may leave
// without waiting for an answer.
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

// parse takes one write() apart and checks it as ib_uverbs_write and verify_hdr do.
// It fills c.cmd as soon as the command is known, for the trace of a refusal.
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

// splitLegacy checks a legacy command, which counts in 4-byte words, its header
// included.
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

// splitExtended checks an extended command, which counts in 8-byte words after both
// headers.
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

// request decodes the request into v, as uverbs_request does: what an extended
// request lacks at its end is zero; what one has beyond our knowledge must be, or a
// newer program wants something that we would miss.
func request[T abi.Struct](c *Call, v *T) error {
	abi.Decode(c.in, v)
	if n := abi.Size[T](); len(c.in) > n && !c.cmd.flexible && !zero(c.in[n:]) {
		return syscall.EOPNOTSUPP
	}
	return nil
}

// needDriverOut returns the check that rxe makes before it does anything: room for the
// driver's part of the answer.
func needDriverOut[T abi.Struct](c *Call) error {
	if c.driverOut < abi.Size[T]() {
		return syscall.EINVAL
	}
	return nil
}

// driverAnswer sets the driver's part of the answer.
func driverAnswer[T abi.Struct](c *Call, v *T) { c.driverResp = abi.Encode(nil, v) }

// pass sends a handle; the client's number for it lands at offset off of the response.
func (c *Call) pass(h Handle, off uint64, kind, id uint32) {
	c.passed = append(c.passed, passed{h, protocol.FD{Address: c.response + off, Kind: kind, ID: id}})
}

// openEvents is for the NIC to open a sink; the client's handle goes to h.
func (c *Call) openEvents(h *Handle) func() (nic.EventSink, error) {
	return func() (nic.EventSink, error) {
		sink, handle, err := c.dev.OpenEvents()
		*h = handle
		return sink, err
	}
}

// maxFill bounds the zeros that we write behind a response. The kernel clears all
// of the buffer that a program announces; a reply has to fit a message.
const maxFill = 4096

// Answer puts the reply together. Responses are cut to the room that the program
// gave, and shorter ones are followed by zeros, as uverbs_response does.
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
