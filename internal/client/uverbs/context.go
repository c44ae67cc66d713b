package uverbs

import (
	"fmt"
	"syscall"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/nic"
)

// A Device is an open device as its commands see it. The server of the client implements it: package server for a process, others
// for clients that share no descriptors with the daemon.
type Device interface {
	// NIC returns the virtual NIC that was opened.
	NIC() *nic.NIC
	// Do runs f on the loop with the session's objects, and waits for it. It returns EIO if the device is gone.
	Do(f func(*nic.Session) error) error
	// Wake makes the loop process a queue pair, as its doorbell does. It is called inside Do.
	Wake(q *nic.QP)
	// OpenEvents creates a channel for events to the client. The NIC gets the sink, and the client gets the handle with the
	// answer and reads the events from it. It is called inside Do.
	OpenEvents() (nic.EventSink, Handle, error)
	// Settle waits until no earlier operation writes to the client's memory any more. A Device whose commands must not wait
	// delays the answer instead. Settle is called outside of Do, at the end of a command.
	Settle()
	// Map returns a region of the client's memory. The client has sent the location in its backing with the command. Map may be slow and is
	// called outside of Do.
	Map(start, length uint64) (*memory.Region, error)
}

// A Handle is a client's reference to an object: for a process a descriptor, an *os.File; for other clients a number in messages.
// The daemon closes its copy after it has sent the handle.
type Handle interface{ Close() error }

// A Context is the state of one open of the device between commands: struct ib_ucontext. Its commands run one after the other. The zero Context is ready.
type Context struct {
	open bool // GET_CONTEXT has succeeded
	call Call // the current or last command
}

// Opened reports whether GET_CONTEXT has succeeded.
func (x *Context) Opened() bool { return x.open }

// Reopen makes a new Context continue one that was opened.
func (x *Context) Reopen() { x.open = true }

// Run runs one command with d, which decides where the command runs: on the loop or beside it. The
// returned call has the outcome and is valid until the next Run. The caller closes the handles when
// the answer has been sent.
func (x *Context) Run(d Device, command []byte, traced bool) *Call {
	x.call = Call{ctx: x, dev: d, raw: command, traced: traced}
	c := &x.call
	c.Errno = protocol.Errno(c.run(), syscall.EIO)
	if c.Errno == syscall.ENOENT && c.cmd != nil && !c.cmd.destroys {
		c.Errno = syscall.EINVAL
	}
	return c
}

// run checks a command and runs it.
func (c *Call) run() error {
	if err := c.parse(c.raw); err != nil {
		return err
	}
	if !c.ctx.open && c.cmd != legacyCommands[abi.CmdGetContext] {
		return syscall.EINVAL
	}
	return c.cmd.run(c)
}

// Refused reports whether the device does not support the command.
func (c *Call) Refused() bool { return c.Errno == syscall.EOPNOTSUPP || c.Errno == syscall.ENOSYS }

// Handles returns the handles for the client, in the order of the answer.
func (c *Call) Handles() (handles []Handle) {
	for _, p := range c.passed {
		handles = append(handles, p.handle)
	}
	return handles
}

// Name returns the name of the command, even of an unknown one.
func (c *Call) Name() string {
	if c.cmd != nil {
		return c.cmd.name
	}
	var hdr abi.CmdHeader
	if !abi.Decode(c.raw, &hdr) {
		return fmt.Sprintf("(%d bytes)", len(c.raw))
	}
	if hdr.Command&abi.FlagExtended != 0 {
		return fmt.Sprintf("EX_%d", hdr.Command&^abi.FlagExtended)
	}
	return fmt.Sprintf("CMD_%d", hdr.Command)
}
