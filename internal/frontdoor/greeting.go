package frontdoor

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"vrdma/internal/abi"
	"vrdma/internal/budget"
	"vrdma/internal/channel"
)

// A peer is who is at the other end.
type peer struct {
	pid, uid, gid  int
	program, label string
	home           home
	homeErr        error           // why home is not known
	account        *budget.Account // who pays
	owner          bool            // the daemon's owner does
}

// guarded has a conversation; an error that it returns is told to the client. A panic
// anywhere in it ends the conversation, not the daemon.
func (s *Server) guarded(c *channel.Conn, who peer, converse conversation) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("panic while serving a client; its connection is closed", "panic", p, "stack", string(debug.Stack()))
		}
	}()
	if err := converse(c, who); err != nil {
		refuse(c, err)
	}
}

// A conversation is what happens on a connection.
type conversation func(c *channel.Conn, who peer) error

// converse reads the greeting and serves whatever kind of conversation it opens.
func (s *Server) converse(c *channel.Conn, who peer) error {
	h, who, err := s.greeting(c, who)
	if err != nil {
		return err
	}
	switch h.Kind {
	case channel.KindProcess:
		err = s.serveProcess(c, who)
	case channel.KindUverbs:
		err = s.serveUverbs(c, who, h.Token)
	case channel.KindRDMACM:
		err = s.serveRDMACM(c, who, h.Token)
	case channel.KindNetlink:
		err = s.serveNetlink(c, who)
	case channel.KindControl:
		err = s.serveControl(c, who, false)
	default:
		err = refusal(syscall.EOPNOTSUPP, "this daemon does not serve connections of kind %d", h.Kind)
	}
	return err
}

// greeting reads and checks a hello, and adds to who what the client says of itself.
func (s *Server) greeting(c *channel.Conn, who peer) (channel.Hello, peer, error) {
	c.SetReadDeadline(time.Now().Add(greetingTime))
	defer c.SetReadDeadline(time.Time{})
	var buf [1024]byte
	n, fds, err := c.ReadMessage(buf[:])
	if err != nil {
		return channel.Hello{}, peer{}, err
	}
	channel.CloseFDs(fds)
	h, err := channel.ParseHello(buf[:n])
	if err != nil {
		return h, peer{}, refusal(syscall.EPROTO, "%v", err)
	}
	if h.Protocol != channel.Version {
		return h, peer{}, refusal(syscall.EPROTO,
			"the daemon (pid %d) speaks protocol %d, this program's libvrdma.so %d: stop the old daemon (vrdma stop, or kill %d) and start again",
			os.Getpid(), channel.Version, h.Protocol, os.Getpid())
	}
	if h.VNIC != "" {
		return h, peer{}, refusal(syscall.ENODEV, "there is no vNIC %q here", h.VNIC)
	}
	who.program, who.label = filepath.Base(printable(h.Program)), printable(h.Label)
	return h, who, nil
}

// printable keeps a client's text from writing to terminals.
func printable(s string) string {
	b := []byte(s)
	for i, c := range b {
		if c < ' ' || c == 0x7f {
			b[i] = '?'
		}
	}
	return string(b)
}

func credentials(u *net.UnixConn) (*unix.Ucred, error) {
	raw, err := u.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var cerr error
	err = raw.Control(func(fd uintptr) {
		cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	return cred, errors.Join(err, cerr)
}

// refusal is the error that a Welcome carries.
func refusal(errno syscall.Errno, format string, args ...any) error {
	return &channel.Refusal{Errno: errno, Text: fmt.Sprintf(format, args...)}
}

// refuse answers a greeting with an error; a client that is gone or sent nothing
// sensible gets none.
func refuse(c *channel.Conn, err error) {
	var r *channel.Refusal
	if !errors.As(err, &r) {
		return
	}
	w := welcome()
	w.Error, w.Text = int32(r.Errno), r.Text
	c.SetWriteDeadline(time.Now().Add(greetingTime))
	c.WriteMessage(w.Append(nil)) // nobody left to tell if this fails
}

func welcome() channel.Welcome {
	return channel.Welcome{
		Magic: channel.Magic, Protocol: channel.Version, DaemonPid: int32(os.Getpid()),
		RdevMajor: abi.UverbsMajor, RdevMinor: abi.UverbsMinor,
	}
}

func newToken() (t channel.Token) {
	rand.Read(t[:]) // never fails: crypto/rand ends the program instead
	return t
}
