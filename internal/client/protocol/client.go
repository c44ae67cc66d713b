package protocol

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// control opens a CONTROL conversation and sends req: at the daemon's control socket if this user may use it, otherwise at its
// program socket, which answers about the user's own programs.
func control(socket string, req ControlRequest) (*Session, error) {
	s, err := dialControl(socket, req.Op)
	if err != nil {
		return nil, err
	}
	if err := s.SendJSON(req); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func dialControl(socket, op string) (*Session, error) {
	hello := Hello{Kind: KindControl, Program: filepath.Base(os.Args[0])}
	var refused *Refusal
	if path := findControl(socket); path != "" {
		s, err := Dial(path, hello)
		if err == nil {
			return s, nil
		}
		errors.As(err, &refused)
	}
	s, err := Dial(socket, hello)
	// The refusal of the control socket explains more than the answer of the program socket.
	if err == nil && refused != nil && slices.Contains([]string{ControlStop, ControlCapture, ControlReload, ControlDrain, ControlMove, ControlMigrate}, op) {
		s.Close()
		return nil, refused
	}
	return s, err
}

// DialObjects opens a conversation about declared objects with the daemon at socket. It tries the control socket, which the
// operator may use, then the tenants' socket, then the program socket. At each one the daemon identifies the caller by its kernel
// credentials.
func DialObjects(socket string) (*Session, error) {
	hello := Hello{Kind: KindControl, Program: filepath.Base(os.Args[0])}
	var why error
	for _, path := range []string{findControl(socket), findTenants(socket), socket} {
		if path == "" {
			continue
		}
		s, err := Dial(path, hello)
		if err == nil {
			if err = s.SendJSON(ControlRequest{Op: ControlObjects}); err == nil {
				err = s.acknowledged()
			}
			if err == nil {
				return s, nil
			}
			s.Close()
			return nil, err
		}
		// Report a daemon's refusal rather than a missing socket.
		if refused := (*Refusal)(nil); why == nil || errors.As(err, &refused) {
			why = err
		}
	}
	return nil, why
}

// DialHandOver asks the daemon at socket to hand over to this process. A message with a descriptor follows (package handover).
func DialHandOver(socket string) (*Session, error) {
	s, err := control(socket, ControlRequest{Op: ControlHandOver})
	if err != nil {
		return nil, err
	}
	if err := s.acknowledged(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// RequestUpgrade makes the daemon at socket start a program as the next daemon, and hand over to it.
func RequestUpgrade(socket, program string) (u Upgrade, err error) {
	s, err := control(socket, ControlRequest{Op: ControlUpgrade, Program: program})
	if err != nil {
		return u, err
	}
	defer s.Close()
	if err := s.ReceiveJSON(&u); err != nil {
		return u, err
	}
	if u.Error != "" {
		return u, errors.New(u.Error)
	}
	return u, nil
}

// QueryStatus asks the daemon at socket for its status.
func QueryStatus(socket string) (*Status, error) {
	st := new(Status)
	if err := query(socket, ControlRequest{Op: ControlStatus}, st); err != nil {
		return nil, err
	}
	if st.Error != "" {
		return nil, errors.New(st.Error)
	}
	return st, nil
}

// queries is how often a query is sent if the daemon ends before it answers, since the next daemon may have taken over, and
// queryPause what is between. Several upgrades may follow one another.
const (
	queries    = 20
	queryPause = 25 * time.Millisecond
)

// query sends a request that changes nothing, and receives the answer.
func query(socket string, req ControlRequest, answer any) (err error) {
	for i := range queries {
		if i > 0 {
			time.Sleep(queryPause)
		}
		err = queryOnce(socket, req, answer)
		if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
			break
		}
	}
	return err
}

func queryOnce(socket string, req ControlRequest, answer any) error {
	s, err := control(socket, req)
	if err != nil {
		return err
	}
	defer s.Close()
	return s.ReceiveJSON(answer)
}

// QueryTenants queries the tenants' socket of the daemon at socket for the NICs of tenants that this user administers; nil if
// there is no answer.
func QueryTenants(socket string) *Status {
	st := new(Status)
	if !askTenants(socket, ControlRequest{Op: ControlStatus}, st) || st.Error != "" {
		return nil
	}
	return st
}

// QueryNICs returns the NICs of the daemon at socket that this user may open.
func QueryNICs(socket string) ([]NICSocket, error) {
	var list NICList
	if err := query(socket, ControlRequest{Op: ControlNICs}, &list); err != nil {
		return nil, err
	}
	if list.Error != "" {
		return nil, errors.New(list.Error)
	}
	return list.NICs, nil
}

// CountConnections returns the number of RDMA connections of the programs with a label.
func CountConnections(socket, label string) (uint64, error) {
	s, err := control(socket, ControlRequest{Op: ControlCount, Label: label})
	if err != nil {
		return 0, err
	}
	defer s.Close()
	var n ConnectionCount
	if err := s.ReceiveJSON(&n); err != nil {
		return 0, err
	}
	if n.Error != "" {
		return 0, errors.New(n.Error)
	}
	return n.RDMA, nil
}

// StopDaemon asks the daemon at socket to end and returns once it has agreed. The daemon has ended when its socket is gone.
func StopDaemon(socket string) error {
	s, err := control(socket, ControlRequest{Op: ControlStop})
	if err != nil {
		return err
	}
	defer s.Close()
	return s.acknowledged()
}

func (s *Session) acknowledged() error {
	var r ControlReply
	if err := s.ReceiveJSON(&r); err != nil {
		return err
	}
	if r.Error != "" {
		return errors.New(r.Error)
	}
	return nil
}

// A Tracer receives trace records of programs' commands.
type Tracer struct{ s *Session }

// Trace subscribes to the programs with this label; an empty label means all. No record of a program started after Trace returns is missed.
func Trace(socket, label string) (*Tracer, error) {
	s, err := control(socket, ControlRequest{Op: ControlTrace, Label: label})
	if err != nil {
		return nil, err
	}
	if err := s.acknowledged(); err != nil {
		s.Close()
		return nil, err
	}
	return &Tracer{s}, nil
}

// Next waits for a record; io.EOF means that the daemon ended.
func (t *Tracer) Next() (TraceRecord, error) {
	var r TraceRecord
	err := t.s.ReceiveJSON(&r)
	return r, err
}

// Close ends the subscription; Next then fails.
func (t *Tracer) Close() error { return t.s.Close() }

// A Capture is a capture file as it grows.
type Capture struct {
	s    *Session
	buf  []byte
	left []byte
	mark []byte // begins the last message
	end  *CaptureEnd
}

// OpenCapture makes the daemon record packets from now on. The request has what is recorded; Op and End are set here.
func OpenCapture(socket string, req ControlRequest) (*Capture, error) {
	req.Op, req.End = ControlCapture, rand.Text()
	s, err := control(socket, req)
	if err != nil {
		return nil, err
	}
	if err := s.acknowledged(); err != nil {
		s.Close()
		return nil, err
	}
	return &Capture{s: s, buf: make([]byte, MaxMessage), mark: []byte(req.End)}, nil
}

// Read implements io.Reader; io.EOF means that the capture or the daemon ended.
func (c *Capture) Read(b []byte) (int, error) {
	if len(c.left) == 0 {
		n, fds, err := c.s.ReadMessage(c.buf)
		if err != nil {
			return 0, err
		}
		CloseFDs(fds)
		if text, last := bytes.CutPrefix(c.buf[:n], c.mark); last {
			c.end = new(CaptureEnd)
			if err := json.Unmarshal(text, c.end); err != nil {
				return 0, err
			}
			return 0, io.EOF
		}
		c.left = c.buf[:n]
	}
	n := copy(b, c.left)
	c.left = c.left[n:]
	return n, nil
}

// More reports whether Read has something without the daemon.
func (c *Capture) More() bool { return len(c.left) > 0 }

// Stop asks the daemon to end the capture. Read returns the rest of it.
func (c *Capture) Stop() error { return c.s.CloseWrite() }

// Counted returns the number of packets, after the end; nil: the daemon did not say.
func (c *Capture) Counted() *CaptureEnd { return c.end }

// Close ends the capture; a Read that waits then fails.
func (c *Capture) Close() error { return c.s.Close() }

// QueryTop returns the counters of every NIC. A caller that is not the daemon's owner gets those of the tenants that it
// administers or, if there are none, of the socket's NIC.
func QueryTop(socket string) (*Top, error) {
	req := ControlRequest{Op: ControlTop}
	if t := new(Top); askTenants(socket, req, t) && t.Error == "" && len(t.NICs) > 0 {
		return t, nil
	}
	t := new(Top)
	err := ask(socket, req, t, &t.Error)
	return t, err
}

// QueryUsage returns the records of a tenant, or of all tenants, since a time.
func QueryUsage(socket string, since time.Time, tenant string) (*UsageReport, error) {
	req := ControlRequest{Op: ControlUsage, Since: since, Tenant: tenant}
	own := new(UsageReport)
	answered := askTenants(socket, req, own) && own.Error == ""
	if answered && len(own.Records) > 0 {
		return own, nil
	}
	u := new(UsageReport)
	err := ask(socket, req, u, &u.Error)
	if answered && errors.Is(err, fs.ErrPermission) {
		return own, nil // there are no records yet
	}
	return u, err
}

// askTenants queries the tenants' socket, unless this user can use a control socket, and reports whether there was an answer.
func askTenants(socket string, req ControlRequest, answer any) bool {
	path := findTenants(socket)
	if path == "" || findControl(socket) != "" {
		return false
	}
	s, err := Dial(path, Hello{Kind: KindControl, Program: filepath.Base(os.Args[0])})
	if err != nil {
		return false
	}
	defer s.Close()
	return s.SendJSON(req) == nil && s.ReceiveJSON(answer) == nil
}

// ask requests one document; failure points to the document's error field.
func ask(socket string, req ControlRequest, answer any, failure *string) error {
	s, err := control(socket, req)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.ReceiveJSON(answer); err != nil {
		return err
	}
	if *failure != "" {
		return errors.New(*failure)
	}
	return nil
}

// ReloadDaemon makes the daemon at socket read its configuration again, and returns what has changed.
func ReloadDaemon(socket string) ([]string, error) {
	reply, err := operate(socket, ControlRequest{Op: ControlReload})
	return reply.Lines, err
}

// DrainDaemon makes the daemon at socket refuse new programs, or admit them again.
func DrainDaemon(socket string, off bool) error {
	_, err := operate(socket, ControlRequest{Op: ControlDrain, Off: off})
	return err
}

// MoveProcess makes the daemon at socket serve the sessions of a process, and those that they are connected to, on
// another loop.
func MoveProcess(socket string, pid, loop int) error {
	_, err := operate(socket, ControlRequest{Op: ControlMove, Pid: pid, Loop: loop})
	return err
}

// operate sends a request that one ControlReply answers.
func operate(socket string, req ControlRequest) (reply ControlReply, err error) {
	s, err := control(socket, req)
	if err != nil {
		return reply, err
	}
	defer s.Close()
	if err := s.ReceiveJSON(&reply); err != nil {
		return reply, err
	}
	if reply.Error != "" {
		err = errors.New(reply.Error)
	}
	return reply, err
}

// MigrateNIC makes the daemon at socket do a part of a NIC's move with its programs. sealed is the state, for MoveArrive.
func MigrateNIC(socket, move, nic string, sealed []byte, within time.Duration) (m Migration, err error) {
	s, err := control(socket, ControlRequest{Op: ControlMigrate, Move: move, NIC: nic, Within: within})
	if err != nil {
		return m, err
	}
	defer s.Close()
	if move == MoveArrive {
		if err := s.SendJSON(Migration{State: sealed}); err != nil {
			return m, err
		}
	}
	if err := s.ReceiveJSON(&m); err != nil {
		return m, err
	}
	if m.Error != "" {
		return m, errors.New(m.Error)
	}
	return m, nil
}
