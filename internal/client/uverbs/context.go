package uverbs

import (
	"fmt"
	"syscall"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/nic"
)

// A Device is an opened device as its commands see it. Whoever serves the client
// provides it: the server for a process, others for clients that share no
// descriptors with us.
type Device interface {
	// NIC is the virtual NIC that was opened.
	NIC() *nic.NIC
	// Do runs f with the session's objects where they may be touched, and waits for it.
	// It answers EIO if the device is gone.
	Do(f func(*nic.Session) error) error
	// Wake has the loop look at a queue pair, as its doorbell would. It is called
	// inside Do.
	Wake(q *nic.QP)
	// OpenEvents makes a way for events to the client: the sink is the NIC's, and the
	// handle, from which the client reads them, goes to it with the answer. It is called
	// inside Do.
	OpenEvents() (nic.EventSink, Handle, error)
	// Settle waits until nothing that was begun before it still writes to the client's
	// memory. A Device whose commands must not wait holds the answer back instead. Settle
	// is called outside Do, at the end of a command.
	Settle()
	// Map makes a region of the client's memory. Where in its backing that memory lies,
	// the client has told the device along with the command. It may take long and is
	// called outside Do.
	Map(start, length uint64) (*memory.Region, error)
}

// A Handle is what a client is given to reach something by: for a process a descriptor, an
// *os.File; for a client that shares none, whatever its messages call one. Ours is closed
// when the client has it.
type Handle interface{ Close() error }

// A Context is what one open of the device keeps between commands: struct ib_ucontext.
// Its commands run one after the other. The zero Context is ready.
type Context struct {
	open bool // GET_CONTEXT has succeeded
	call Call // the command under way, or the last one
}

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

// Refused reports whether the command is one that this device does not have.
func (c *Call) Refused() bool { return c.Errno == syscall.EOPNOTSUPP || c.Errno == syscall.ENOSYS }

// Handles go to the client with the answer, in the order in which that names them.
func (c *Call) Handles() (handles []Handle) {
	for _, p := range c.passed {
		handles = append(handles, p.handle)
	}
	return handles
}

// Name names the command, one that we do not know included.
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
