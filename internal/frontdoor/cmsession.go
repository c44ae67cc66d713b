package frontdoor

import (
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"vrdma/internal/abi"
	"vrdma/internal/channel"
	"vrdma/internal/rdmacm"
)

// A cmSession is one open of the rdma_cm device: an event channel. Like a session,
// it is served by one goroutine, and ends with its connection.
type cmSession struct {
	srv  *Server
	proc *process
	conn *channel.Conn
	id   uint64
	ch   *rdmacm.Channel // touched on the loop only
}

// maxChannels is how many channels a process may have: a program with synchronous
// identifiers (rsockets) has one a connection.
const maxChannels = 16384

// serveRDMACM lives as long as the channel.
func (s *Server) serveRDMACM(c *channel.Conn, who peer, token channel.Token) error {
	if s.cfg.CMA == nil {
		return refusal(syscall.EOPNOTSUPP, "this daemon has no connection manager")
	}
	p, err := s.process(token, who)
	if err != nil {
		return err
	}
	ses := &cmSession{srv: s, proc: p, conn: c, id: s.ids.Add(1)}
	fd := -1
	err = syscall.EIO
	if perr := s.onLoop(func() { ses.ch, fd, err = p.cm.NewChannel() }); perr != nil {
		err = perr
	}
	if err != nil {
		return refusal(errnoOf(err, syscall.EMFILE), "the daemon cannot open an event channel: %v", err)
	}
	defer ses.end()
	if err := p.adoptChannel(ses); err != nil {
		unix.Close(fd)
		return err
	}
	w := welcome()
	w.NumFDs, w.ID = 1, ses.ch.Name
	w.RdevMajor, w.RdevMinor = cmMajor, cmMinor
	err = c.WriteMessage(w.Append(nil), fd)
	unix.Close(fd)
	if err != nil {
		return nil
	}
	ses.mark(channel.TraceOpen)
	ses.loop()
	ses.mark(channel.TraceClose)
	return nil
}

// The device node of rdma_cm: a miscellaneous device.
const (
	cmMajor = 10
	cmMinor = 122
)

func (ses *cmSession) end() {
	ses.proc.dropChannel(ses)
	if err := ses.srv.onLoop(ses.ch.Close); err != nil {
		ses.srv.log.Error("panic while closing an event channel", "session", ses.id, "error", err)
	}
}

// loop serves commands until the connection ends.
func (ses *cmSession) loop() {
	var req channel.Request
	var reply channel.ReplyBuilder
	out := make([]byte, 0, 512)
	for {
		buf, n, err := receive(ses.conn)
		if err != nil {
			return
		}
		if err := req.Parse((*buf)[:n]); err != nil {
			ses.srv.log.Warn("a client sent nonsense, its event channel is closed", "pid", ses.proc.pid, "program", ses.proc.program, "error", err)
			buffers.Put(buf)
			return
		}
		reply.Reset(out)
		errno := syscall.EINVAL
		if req.Op == channel.OpCommand {
			errno = ses.command(req.Command, &reply)
		}
		err = ses.conn.WriteMessage(finish(&reply, errno))
		buffers.Put(buf)
		if err != nil {
			return
		}
	}
}

// A cmCall is one command on its way.
type cmCall struct {
	ses *cmSession
	in  []byte // the request
	out int    // room for the response
	// behind is what the shim sent behind the command: the memory that it names.
	behind []byte

	at   uint64 // where the response goes
	resp []byte

	traced       bool
	args, result string
}

// command runs one command.
func (ses *cmSession) command(b []byte, reply *channel.ReplyBuilder) syscall.Errno {
	c := &cmCall{ses: ses, traced: ses.srv.trace.wants(&ses.proc.peer)}
	start := time.Now()
	cmd, err := c.parse(b)
	if err == nil {
		err = cmd.run(c)
	}
	errno := errnoOf(err, syscall.EIO)
	if errno == 0 && c.resp != nil {
		reply.Store(c.at, c.resp[:min(len(c.resp), c.out)])
	}
	if errno == syscall.ENOSYS {
		ses.srv.refused.count(cmName(cmd, b))
	}
	if c.traced && errno != syscall.EAGAIN {
		r := ses.record(cmName(cmd, b), start)
		r.Duration, r.Args, r.Result = time.Since(start), c.args, c.result
		if errno != 0 {
			r.Result, r.Errno, r.Error, r.Refused = "", int(errno), errnoName(errno), errno == syscall.ENOSYS
		}
		ses.srv.trace.publish(&ses.proc.peer, r)
	}
	return errno
}

// parse takes one write() apart and checks it as ucma_write does.
func (c *cmCall) parse(b []byte) (*cmCommand, error) {
	var hdr abi.CMCmdHeader
	if !abi.Decode(b, &hdr) || hdr.Cmd >= abi.NumCMCmd {
		return nil, syscall.EINVAL
	}
	body := b[abi.Size[abi.CMCmdHeader]():]
	if int(hdr.In) > len(body) {
		return nil, syscall.EINVAL
	}
	cmd := &cmCommands[hdr.Cmd]
	if cmd.run == nil {
		return cmd, syscall.ENOSYS
	}
	c.in, c.behind, c.out = body[:hdr.In], body[hdr.In:], int(hdr.Out)
	if c.out < cmd.response {
		return cmd, syscall.ENOSPC
	}
	return cmd, nil
}

func cmName(c *cmCommand, b []byte) string {
	if c != nil && c.name != "" {
		return c.name
	}
	var hdr abi.CMCmdHeader
	abi.Decode(b, &hdr)
	return fmt.Sprintf("CM_%d", hdr.Cmd)
}

// do runs f on the loop. It panics where f panicked, and so ends the session.
func (ses *cmSession) do(f func(*rdmacm.Channel) error) error {
	err := error(syscall.EIO) // what a device that is gone answers
	if p := ses.srv.onLoop(func() { err = f(ses.ch) }); p != nil {
		panic(p)
	}
	return err
}

// withID runs f on the loop with an identifier of the channel.
func (c *cmCall) withID(name uint32, f func(*rdmacm.ID) error) error {
	return c.ses.do(func(ch *rdmacm.Channel) error {
		id, err := ch.ID(name)
		if err != nil {
			return err
		}
		return f(id)
	})
}

func (ses *cmSession) record(command string, t time.Time) channel.TraceRecord {
	p := &ses.proc.peer
	return channel.TraceRecord{Time: t, Session: ses.id, Pid: p.pid, Program: p.program, Label: p.label, Command: command}
}

func (ses *cmSession) mark(mark string) {
	if h := &ses.srv.trace; h.wants(&ses.proc.peer) {
		h.publish(&ses.proc.peer, ses.record("rdma_cm "+mark, time.Now()))
	}
}
