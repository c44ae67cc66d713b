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

// A Channel is one open of the rdma_cm device, an event channel, as its commands see it.
// Whoever serves the client provides it.
type Channel interface {
	// Do runs f where the connection manager's objects may be touched, and waits for it.
	// It answers EIO if the channel is gone.
	Do(f func(*rdmacm.Channel) error) error
	// Aside runs f, which may take long, outside of Do, at the end of a command. f uses the
	// channel that it is given. A channel that runs commands on the loop keeps f for later:
	// Aside returns nil at once. A goroutine beside the loop then runs f with a channel of its
	// own, and calls End with the result.
	Aside(f func(Channel) error) error
	// OnLoop runs f where Do would, for what ends after its command has.
	OnLoop(f func())
	// CMA is the connection manager, and NodeGUID the device's.
	CMA() *rdmacm.CMA
	NodeGUID() uint64
	// Route finds the address from which another host is reached; from may be
	// unspecified. Reach waits until the next station on the way to it is known.
	Route(from, to netip.Addr) (netip.Addr, error)
	Reach(from, to netip.Addr, timeout time.Duration) error
}

// A Call is one command on its way.
type Call struct {
	ch  Channel
	cmd *command
	raw []byte // the command as it came

	in  []byte // the request
	out int    // room for the response
	// behind is what the shim sent behind the command: the memory that it names.
	behind []byte

	at   uint64 // where the response goes
	resp []byte

	// Told is the event that was handed out; nil: none was.
	Told *abi.CMEventResp

	// Errno is the outcome.
	Errno syscall.Errno
	// Args and Result are what a trace says about it; empty unless it is traced.
	Args, Result string
	traced       bool
}

// Run runs one command of ch, as c, which then has its outcome.
func (c *Call) Run(ch Channel, command []byte, traced bool) {
	*c = Call{ch: ch, raw: command, traced: traced}
	err := c.parse(command)
	if err == nil {
		err = c.cmd.run(c)
	}
	c.End(err)
}

// End sets the outcome of the command; see Channel.Aside.
func (c *Call) End(err error) { c.Errno = protocol.Errno(err, syscall.EIO) }

// Answer puts the reply together.
func (c *Call) Answer(r *protocol.ReplyBuilder) {
	if c.Errno == 0 && c.resp != nil {
		r.Store(c.at, c.resp[:min(len(c.resp), c.out)])
	}
}

// Refused reports whether the command is one that we do not have.
func (c *Call) Refused() bool { return c.Errno == syscall.ENOSYS }

// Name names the command, one that we do not know included.
func (c *Call) Name() string {
	if c.cmd != nil && c.cmd.name != "" {
		return c.cmd.name
	}
	var hdr abi.CMCmdHeader
	abi.Decode(c.raw, &hdr)
	return fmt.Sprintf("CM_%d", hdr.Cmd)
}

// parse takes one write() apart and checks it as ucma_write does.
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

// lookAt is withID for f that changes nothing.
func (c *Call) lookAt(name uint32, f func(*rdmacm.ID) error) error {
	return c.ch.Do(func(ch *rdmacm.Channel) error {
		id, err := ch.ID(name)
		if err != nil {
			return err
		}
		return f(id)
	})
}
