package ipc

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/client/protocol"
)

// A Channel is an open rdma_cm device, which executes commands and delivers events.
type Channel interface {
	// Command runs one command; more is the memory that SET_OPTION points to. The caller holds a lock.
	Command(cmd, more []byte) error
	// Wait waits until GET_EVENT has an event.
	Wait() error
	// Scratch returns the memory for the responses of commands.
	Scratch() *Mapped
	// Close closes the channel and ends a pending Wait.
	Close() error
	// Unmap unmaps the scratch page.
	Unmap()
}

// daemonChannel is a Channel of the daemon.
type daemonChannel struct {
	session *protocol.Session
	events  *os.File // readable while there are events; it is polled, never read
	scratch Mapped
	buf     []byte
	out     []byte
	reply   protocol.Reply
}

// OpenChannel implements Backend.
func (d *Daemon) OpenChannel() (Channel, error) {
	s, err := protocol.Dial(d.socket, protocol.Hello{
		Kind: protocol.KindRDMACM, Token: d.process.session.Welcome.Token, Program: program(), Label: os.Getenv("VRDMA_TRACE"),
	})
	if err != nil {
		return nil, err
	}
	c := &daemonChannel{session: s, buf: make([]byte, protocol.MaxMessage)}
	if len(s.Files) != 1 {
		s.Close()
		return nil, fmt.Errorf("the daemon sent %d descriptors for a channel, not one", len(s.Files))
	}
	// Duplicate the descriptor, so that the runtime's poller can watch it.
	fd, err := unix.FcntlInt(s.Files[0].Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		_ = unix.SetNonblock(fd, true)
		c.events = os.NewFile(uintptr(fd), "verbs-cm")
		c.scratch, err = MapAnonymous(ScratchSize)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (c *daemonChannel) Command(cmd, more []byte) error {
	req := protocol.Request{Op: protocol.OpCommand, Command: append(cmd[:len(cmd):len(cmd)], more...)}
	c.out = req.Append(c.out[:0])
	if err := c.session.WriteMessage(c.out); err != nil {
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	n, fds, err := c.session.ReadMessage(c.buf)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	protocol.CloseFDs(fds)
	if err := c.reply.Parse(c.buf[:n]); err != nil {
		return err
	}
	if err := store(&c.scratch, c.reply.Stores); err != nil {
		return err
	}
	if c.reply.Error != 0 {
		return syscall.Errno(c.reply.Error)
	}
	return nil
}

func (c *daemonChannel) Wait() error      { return await(c.events) }
func (c *daemonChannel) Scratch() *Mapped { return &c.scratch }
func (c *daemonChannel) Unmap()           { c.scratch.Unmap() }

func (c *daemonChannel) Close() error {
	err := c.session.Close()
	if c.events != nil {
		err = errors.Join(err, c.events.Close())
	}
	return err
}

// await waits until a file is readable. It reads nothing.
func await(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(func(fd uintptr) bool { return protocol.Ready(int(fd)) })
}

// kernelChannel is a Channel of the kernel.
type kernelChannel struct {
	file    *os.File
	scratch Mapped
}

// OpenChannel implements Backend.
func (k *Kernel) OpenChannel() (Channel, error) {
	fd, err := unix.Open(devices+"/rdma_cm", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s/rdma_cm: %w", devices, err)
	}
	c := &kernelChannel{file: os.NewFile(uintptr(fd), "rdma_cm")}
	if c.scratch, err = MapAnonymous(ScratchSize); err != nil {
		c.file.Close()
		return nil, err
	}
	return c, nil
}

func (c *kernelChannel) Command(cmd, more []byte) error {
	if len(more) > 0 {
		return errors.ErrUnsupported
	}
	// GET_EVENT returns EAGAIN if there is no event. Use the raw descriptor: os.File would wait then.
	raw, err := c.file.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Write(func(fd uintptr) bool {
		_, failed = unix.Write(int(fd), cmd)
		return failed != unix.EINTR
	})
	return errors.Join(err, failed)
}

func (c *kernelChannel) Wait() error      { return await(c.file) }
func (c *kernelChannel) Scratch() *Mapped { return &c.scratch }
func (c *kernelChannel) Close() error     { return c.file.Close() }
func (c *kernelChannel) Unmap()           { c.scratch.Unmap() }
