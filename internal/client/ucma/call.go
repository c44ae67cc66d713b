package ucma

import (
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/cm/rdmacm"
)

// A Channel is one open of the rdma_cm device, an event channel, as its commands see it. The server of the client implements it.
type Channel interface {
	// Do runs f on the loop with the connection manager's objects, and waits for it. It returns EIO if the channel is gone.
	Do(f func(*rdmacm.Channel) error) error
	// Aside runs f, which may take long, outside of Do, at the end of a command. f uses the
	// channel that it is given. A channel that runs commands on the loop keeps f for later:
	// Aside returns nil at once. A goroutine beside the loop then runs f with a channel of its
	// own, and calls End with the result.
	Aside(f func(Channel) error) error
	// OnLoop runs f on the loop, for operations that end after their command.
	OnLoop(f func())
	// CMA returns the connection manager, and NodeGUID the GUID of the device.
	CMA() *rdmacm.CMA
	NodeGUID() uint64
	// Route returns the source address for another host; from may be unspecified. Reach waits until the next hop is resolved.
	Route(from, to netip.Addr) (netip.Addr, error)
	Reach(from, to netip.Addr, timeout time.Duration) error
}

// A Call is one command in progress.
type Call struct {
	ch  Channel
	cmd *command
	raw []byte // the command as received

	in  []byte // the request
	out int    // size of the response buffer
	// behind is the memory that the command points to, which the interposer appended.
	behind []byte

	at   uint64 // address of the response
	resp []byte

	// Told is the event that the command returned; nil: none.
	Told *abi.CMEventResp

	// Errno is the result.
	Errno syscall.Errno
	// Args and Result are the texts for a trace; empty unless the call is traced.
	Args, Result string
	traced       bool
}

// Run runs one command of ch. c has the result afterwards.
func (c *Call) Run(ch Channel, command []byte, traced bool) {
	*c = Call{ch: ch, raw: command, traced: traced}
	err := c.parse(command)
	if err == nil {
		err = c.cmd.run(c)
	}
	c.End(err)
}

// End sets the result of the command; see Channel.Aside.
func (c *Call) End(err error) { c.Errno = protocol.Errno(err, syscall.EIO) }

// Answer builds the reply.
func (c *Call) Answer(r *protocol.ReplyBuilder) {
	if c.Errno == 0 && c.resp != nil {
		r.Store(c.at, c.resp[:min(len(c.resp), c.out)])
	}
}

// Refused reports whether the command is not supported.
func (c *Call) Refused() bool { return c.Errno == syscall.ENOSYS }

// Name returns the name of the command, even of an unknown one.
func (c *Call) Name() string {
	if c.cmd != nil && c.cmd.name != "" {
		return c.cmd.name
	}
	var hdr abi.CMCmdHeader
	abi.Decode(c.raw, &hdr)
	return fmt.Sprintf("CM_%d", hdr.Cmd)
}

// parse decodes one write() and checks it like ucma_write.
func (c *Call) parse(b []byte) error {
	var hdr abi.CMCmdHeader
	if !abi.Decode(b, &hdr) || hdr.Cmd >= abi.NumCMCmd {
		return syscall.EINVAL
	}
	body := b[abi.Size[abi.CMCmdHeader]():]
	if int(hdr.In) > len(body) {
		return syscall.EINVAL
	}
	c.cmd = &commands[hdr.Cmd]
	if c.cmd.run == nil {
		return syscall.ENOSYS
	}
	c.in, c.behind, c.out = body[:hdr.In], body[hdr.In:], int(hdr.Out)
	if c.out < c.cmd.response {
		return syscall.ENOSPC
	}
	return nil
}

// withID runs f, which may change it, on the loop with an identifier of the channel.
func (c *Call) withID(name uint32, f func(*rdmacm.ID) error) error {
	return c.lookAt(name, func(id *rdmacm.ID) error {
		id.Changed()
		return f(id)
	})
}

// lookAt is withID for an f that changes nothing.
func (c *Call) lookAt(name uint32, f func(*rdmacm.ID) error) error {
	return c.ch.Do(func(ch *rdmacm.Channel) error {
		id, err := ch.ID(name)
		if err != nil {
			return err
		}
		return f(id)
	})
}
