package protocol

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// Conn sends and receives messages and descriptors over one connection. One goroutine may read while another writes.
type Conn struct {
	*net.UnixConn
	oob [64]byte // space for MaxFDs descriptors
	box mailbox

	mu       sync.Mutex // guards Detach, Close and Release against each other
	detached bool       // see raw.go
	raw      int        // its descriptor when detached; -1: released
	refuses  bool       // the kernel refuses to send descriptors to it
	bare     bool       // no older message is left, so none has descriptors
}

// NewConn wraps an accepted or dialled connection.
func NewConn(u *net.UnixConn) *Conn { return &Conn{UnixConn: u, raw: -1} }

// ReadMessage receives one message into buf. The caller owns its descriptors; io.EOF means that the peer has closed the connection.
func (c *Conn) ReadMessage(buf []byte) (n int, fds []int, err error) {
	n, oobn, flags, _, err := c.ReadMsgUnix(buf, c.oob[:])
	if err != nil {
		return 0, nil, err
	}
	if oobn > 0 {
		fds = descriptors(c.oob[:oobn])
	}
	switch {
	case flags&(syscall.MSG_TRUNC|syscall.MSG_CTRUNC) != 0:
		CloseFDs(fds)
		return 0, nil, malformed("longer than %d bytes or with more than %d descriptors", len(buf), MaxFDs)
	case n == 0:
		CloseFDs(fds)
		return 0, nil, io.EOF
	}
	return n, fds, nil
}

// descriptors extracts the descriptors from control messages. It ignores messages that it cannot parse.
func descriptors(oob []byte) (fds []int) {
	msgs, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for i := range msgs {
		if got, err := syscall.ParseUnixRights(&msgs[i]); err == nil {
			fds = append(fds, got...)
		}
	}
	return fds
}

// CloseFDs closes descriptors.
func CloseFDs(fds []int) {
	for _, fd := range fds {
		syscall.Close(fd)
	}
}

// WriteMessage sends one message with descriptors. The caller keeps its own descriptors.
func (c *Conn) WriteMessage(b []byte, fds ...int) error {
	if len(b) > MaxMessage || len(fds) > MaxFDs {
		return ErrTooLong
	}
	var oob []byte
	if len(fds) > 0 {
		oob = syscall.UnixRights(fds...)
	}
	if c.detached {
		return c.writeDetached(b, oob)
	}
	n, _, err := c.WriteMsgUnix(b, oob, nil)
	if err == nil && n != len(b) {
		return io.ErrShortWrite
	}
	return err
}

// A Refusal is a Welcome with an error.
type Refusal struct {
	Errno     syscall.Errno
	Text      string
	DaemonPid int
}

func (r *Refusal) Error() string { return r.Text }
func (r *Refusal) Unwrap() error { return r.Errno }

// A Session is an open conversation with the daemon.
type Session struct {
	*Conn
	Welcome Welcome
	Files   []*os.File // descriptors from the daemon: see protocol.h
}

// backlogTime is how long Connect waits while the daemon's backlog is full.
const backlogTime = 10 * time.Second

// Connect connects to a daemon's socket. If the backlog is full, it waits, as a blocking connect does; Go's sockets are
// non-blocking and get EAGAIN.
func Connect(socket string) (*net.UnixConn, error) {
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		u, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
		if !errors.Is(err, syscall.EAGAIN) || time.Since(start) > backlogTime {
			return u, err
		}
	}
}

// Dial opens a conversation with the daemon at socket. Magic and Protocol of h are
// filled in.
func Dial(socket string, h Hello) (*Session, error) {
	return DialContext(context.Background(), socket, h)
}

// DialContext is Dial with a context: the process at the socket may never answer.
func DialContext(ctx context.Context, socket string, h Hello) (*Session, error) {
	u, err := Connect(socket)
	if err != nil {
		return nil, fmt.Errorf("no vrdma daemon answers: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { u.SetDeadline(time.Unix(1, 0)) })
	s, err := greet(NewConn(u), h)
	if !stop() {
		if err == nil {
			s.Close()
		}
		err = fmt.Errorf("no vrdma daemon answers: %w", ctx.Err())
	}
	if err != nil {
		u.Close()
		return nil, err
	}
	return s, nil
}

func greet(c *Conn, h Hello) (*Session, error) {
	h.Magic, h.Protocol = Magic, Version
	if err := c.WriteMessage(h.Append(nil)); err != nil {
		return nil, fmt.Errorf("greeting the daemon: %w", err)
	}
	buf := make([]byte, MaxMessage)
	n, fds, err := c.ReadMessage(buf)
	if err != nil {
		return nil, fmt.Errorf("the daemon closed the connection during the greeting: %w", err)
	}
	files := make([]*os.File, len(fds))
	for i, fd := range fds {
		files[i] = os.NewFile(uintptr(fd), fmt.Sprintf("vrdma-%d", i))
	}
	w, err := ParseWelcome(buf[:n])
	if err == nil && w.Error != 0 {
		err = &Refusal{Errno: syscall.Errno(w.Error), Text: w.Text, DaemonPid: int(w.DaemonPid)}
	}
	if err == nil && int(w.NumFDs) != len(files) {
		err = malformed("%d descriptors announced, %d came", w.NumFDs, len(files))
	}
	if err != nil {
		for _, f := range files {
			f.Close()
		}
		return nil, err
	}
	return &Session{Conn: c, Welcome: w, Files: files}, nil
}

// Close ends the conversation and closes the files that came with it.
func (s *Session) Close() error {
	errs := []error{s.Conn.Close()}
	for _, f := range s.Files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
