package server

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/diag"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/printable"
)

// guarded serves a connection, and sends an error of converse to the client. A panic ends the connection, not the
// daemon. So does a fault in a virtual machine's memory file that its owner has truncated.
func (s *Server) guarded(c *protocol.Conn, who credentials.Caller, converse func(*protocol.Conn, credentials.Caller) error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("panic while serving a client; its connection is closed", "panic", p, "stack", string(debug.Stack()))
		}
	}()
	if err := converse(c, who); err != nil {
		refuse(c, err)
	}
}

// converse implements endpoint.
func (d *listener) converse(c *protocol.Conn, who credentials.Caller) error {
	return d.talk(c, socketEnd{c}, who)
}

// talk reads the hello and serves the kind of connection that it names.
func (d *listener) talk(c *protocol.Conn, client ClientEnd, who credentials.Caller) error {
	s := d.srv
	if err := s.awaitHello(c); err != nil {
		return err
	}
	defer s.gate.Leave()
	h, who, files, err := s.greeting(c, who, d)
	defer func() { protocol.CloseFDs(files) }()
	if err != nil {
		return err
	}
	if d.NIC == nil && h.Kind != protocol.KindControl {
		return refusal(syscall.ENODEV, "this daemon has no default NIC: name one with vrdma run --nic TENANT/NAME, or mount the directory of one")
	}
	returns := h.Flags&protocol.HelloReturn != 0
	if err := s.drained(h.Kind); err != nil && !returns {
		return err
	}
	if err := s.moves.refuses(d.NIC, &h); err != nil {
		return err
	}
	if returns { // a program that is not expected is no user of the NIC
		if _, err := s.moves.arriving(d.NIC, h.Token); err != nil {
			return err
		}
	}
	// A process that was admitted may have changed its user since: its token is the proof. Others become users before
	// Admit is called, so that Recheck finds every admitted caller.
	asked := h.Kind != protocol.KindUverbs && h.Kind != protocol.KindRDMACM && !client.Vouched()
	user := who // a copy: serveProcess changes its own
	if err := d.enter(c, client, &user, asked); err != nil {
		return err
	}
	defer d.leave(c)
	if asked {
		if err := d.admits(c, &who); err != nil {
			return err
		}
	}
	var workload uint64
	if h.Kind == protocol.KindProcess && returns { // attach comes later: the program stands still until it is back
		if workload, err = d.occupyOnly(c, client, &who); err != nil {
			return err
		}
	} else if h.Kind == protocol.KindProcess {
		if err := d.occupy(c, client, &who); err != nil { // before Claim: no placement is released then
			return err
		}
		if d.Claim != nil {
			if err := d.Claim(); err != nil {
				return refusal(syscall.EBUSY, "%v", err)
			}
		}
	}
	if d.NIC != nil && d.Rests {
		if err := d.tree.Use(); err != nil {
			return refusal(protocol.Errno(err, syscall.EIO), "the daemon cannot make the device tree: %v", err)
		}
		defer d.tree.Done()
	}
	if returns {
		fds := files
		files = nil
		return d.serveReturn(c, who, h, fds, workload)
	}
	switch h.Kind {
	case protocol.KindProcess:
		err = s.serveProcess(c, client, who, d, h)
	case protocol.KindUverbs:
		err = s.serveUverbs(c, client, who, d, h)
	case protocol.KindRDMACM:
		err = s.serveRDMACM(c, client, who, d, h)
	case protocol.KindNetlink:
		err = d.serveNetlink(c, who)
	case protocol.KindGuest:
		err = d.serveMachineCard(c)
	case protocol.KindControl:
		s.gate.Outside(func() {
			err = s.tools.serve(c, diag.View{Who: &who, Conn: c, Resident: s.admission.resident(&who) == nil, NIC: d.NIC, Socket: d.Socket})
		})
	default:
		err = refusal(syscall.EOPNOTSUPP, "this daemon does not serve connections of kind %d", h.Kind)
	}
	return err
}

// awaitHello waits until the client has said hello, and then enters the gate.
func (s *Server) awaitHello(c *protocol.Conn) error {
	c.SetReadDeadline(time.Now().Add(greetingTime))
	if err := c.Wait(); err != nil {
		return err
	}
	s.gate.Enter()
	s.mu.Lock()
	s.conns[c] = nil
	s.mu.Unlock()
	return nil
}

// greeting reads and checks the hello of a connection to d. It adds the client's program, label and NIC to the caller. The caller
// closes the descriptors, which only a client that comes back may send.
func (s *Server) greeting(c *protocol.Conn, who credentials.Caller, d *listener) (h protocol.Hello, _ credentials.Caller, fds []int, err error) {
	defer c.SetReadDeadline(time.Time{})
	var buf [1024]byte
	n, fds, err := c.ReadMessage(buf[:])
	if err != nil {
		return h, who, nil, err
	}
	h, err = protocol.ParseHello(buf[:n])
	if err != nil || h.Flags&protocol.HelloReturn == 0 {
		protocol.CloseFDs(fds)
		fds = nil
	}
	if err != nil {
		return h, who, nil, refusal(syscall.EPROTO, "%v", err)
	}
	if h.Protocol < protocol.OldestVersion || h.Protocol > protocol.Version {
		return h, who, fds, refusal(syscall.EPROTO,
			"the daemon (pid %d) speaks protocol %d, this program's libvrdma.so %d: stop the old daemon (vrdma stop, or kill %d) and start again",
			os.Getpid(), protocol.Version, h.Protocol, os.Getpid())
	}
	if h.VNIC != "" && d.NIC != nil && h.VNIC != d.NIC.Name {
		return h, who, fds, refusal(syscall.ENODEV, "there is no vNIC %q behind %s, only %q: connect to the socket of that vNIC, or name none",
			printable.Text(h.VNIC), d.Socket, d.NIC.Name)
	}
	who.Program, who.Label = filepath.Base(printable.Text(h.Program)), printable.Text(h.Label)
	if who.Machine != "" {
		who.Program += "@" + who.Machine
	}
	if d.NIC != nil {
		who.NIC = d.NIC.Name
	}
	return h, who, fds, nil
}

// refusal is the error that a Welcome carries.
func refusal(errno syscall.Errno, format string, args ...any) error {
	return &protocol.Refusal{Errno: errno, Text: fmt.Sprintf(format, args...)}
}

// refuse answers a hello with an error. A client that has ended or sent nonsense gets no answer.
func refuse(c *protocol.Conn, err error) {
	var r *protocol.Refusal
	if !errors.As(err, &r) {
		return
	}
	w := welcome()
	w.Error, w.Text = int32(r.Errno), r.Text
	c.SetWriteDeadline(time.Now().Add(greetingTime))
	c.WriteMessage(w.Append(nil)) // an error means that the client is gone
}

func welcome() protocol.Welcome {
	return protocol.Welcome{
		Magic: protocol.Magic, Protocol: protocol.Version, DaemonPid: int32(os.Getpid()),
		RdevMajor: abi.UverbsMajor, RdevMinor: abi.UverbsMinor,
	}
}

func newToken() (t protocol.Token) {
	rand.Read(t[:]) // never fails: crypto/rand ends the program instead
	return t
}
