package vm

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/gate"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/client/server"
	"vrdma.dev/vrdma/internal/net/vhostuser"
)

// Config has the settings of Sockets.
type Config struct {
	// NIC is the name of the NIC, which need not exist yet.
	NIC string
	// Dir is the directory of the sockets.
	Dir string
	// SocketMode is the mode of the sockets.
	SocketMode fs.FileMode
	// Tree is the directory of the NIC's sysfs tree.
	Tree string
	Host Host
	Log  *slog.Logger
}

// A Host is the interface of a NIC's virtual machine to the daemon.
type Host interface {
	// Vouch identifies the process that has connected, or says why it may not use the NIC.
	Vouch(u *net.UnixConn) (credentials.Caller, error)
	// Charge charges a guest's memory to the account of the process who.
	Charge(who credentials.Caller, b budget.Bill) (refund func(), err error)
	// Receive serves one connection of the guest, see server.Server.
	Receive(c *protocol.Conn, l server.ClientEnd, who credentials.Caller) error
	// Card serves the network card. It informs d and calls ready with the connection, as vhostuser.Serve does.
	Card(u *net.UnixConn, d *vhostuser.Device, ready func(*vhostuser.Conn)) error
	// ThawCard is vhostuser.Thaw for the network card. serve is Card from then on.
	ThawCard(u *net.UnixConn, d *vhostuser.Device, st *vhostuser.ConnState, file func(uint32) (int, error)) (c *vhostuser.Conn, serve func() error, err error)
}

// Names of the sockets in the directory.
const (
	LineSocket = "line"
	BellSocket = "bell"
	CardSocket = "net"
)

// Sockets has the sockets to which QEMU connects the two virtio-serial ports and the network card of a NIC. One guest uses it at a time.
//
// Its goroutines pass the gate only with a message in hand (freeze.go).
type Sockets struct {
	cfg       Config
	gate      gate.Gate
	listeners []*net.UnixListener // in the order of roles
	card      card
	memory    func() (Memory, error) // returns the guest's current memory from the card
	work      sync.WaitGroup
	// Rate limits of log messages that guests can cause.
	agents, noAgent, noProgram, noDevice, noQueue, cut seldom

	mu      sync.Mutex
	closed  bool
	machine *guest
	line    *line         // connection of the current guest; nil: not connected
	net     *net.UnixConn // likewise
	bells   *net.UnixConn // likewise

	before before // of a live upgrade; it does not change once the goroutines run
}

// A role is what one of the sockets is for.
type role struct {
	name string
	// serve serves a connection until it has ended completely, and goOn one of the daemon before this one, if there is one. They are called
	// inside of the gate.
	serve func(*Sockets, *net.UnixConn, credentials.Caller)
	goOn  func(*Sockets)
}

var roles = []role{
	{LineSocket, (*Sockets).serveLine, (*Sockets).goOnLine}, {BellSocket, (*Sockets).serveBell, (*Sockets).goOnBell}, {CardSocket, (*Sockets).serveCard, (*Sockets).goOnCard},
}

// New returns Sockets that are not open.
func New(cfg Config) *Sockets {
	p := &Sockets{cfg: cfg}
	p.memory = p.card.memory
	return p
}

// Listen opens the sockets.
func Listen(cfg Config) (*Sockets, error) {
	p := New(cfg)
	if err := p.Open(); err != nil {
		return nil, err
	}
	return p, nil
}

// Open opens the sockets.
func (p *Sockets) Open() error {
	if err := os.MkdirAll(p.cfg.Dir, 0o700); err != nil {
		return fmt.Errorf("the directory for a virtual machine: %w", err)
	}
	for _, r := range roles {
		if err := p.listen(r.name); err != nil {
			p.Close()
			return fmt.Errorf("the socket for a virtual machine: %w", err)
		}
	}
	p.start()
	return nil
}

// listen opens a socket.
func (p *Sockets) listen(name string) error {
	path := filepath.Join(p.cfg.Dir, name)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return err
	}
	p.listeners = append(p.listeners, l)
	return os.Chmod(path, p.cfg.SocketMode)
}

// start starts to serve the sockets.
func (p *Sockets) start() {
	for i, r := range roles {
		l := p.listeners[i]
		p.work.Add(1)
		go func() {
			defer p.work.Done()
			p.gate.Enter()
			defer p.gate.Leave()
			r.goOn(p)
			p.accept(l, r.serve)
		}()
	}
}

// persist calls read, which waits inside of the gate, until a freezer interrupts it by the deadline that setDeadline sets. After that it
// continues.
func persist[T any](p *Sockets, setDeadline func(time.Time) error, read func() (T, error)) (T, error) {
	for {
		v, err := read()
		switch {
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return v, err
		case p.gate.Closing():
			p.gate.Outside(p.gate.AwaitOpen)
		default:
			setDeadline(time.Time{}) // fails if it is closed, as read does
		}
	}
}

// accept serves one connection after the other: the next one waits until the previous one has ended completely.
func (p *Sockets) accept(l *net.UnixListener, serve func(*Sockets, *net.UnixConn, credentials.Caller)) {
	for {
		u, err := persist(p, l.SetDeadline, l.AcceptUnix)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors
			p.gate.Outside(func() { time.Sleep(100 * time.Millisecond) })
			continue
		}
		who, err := p.cfg.Host.Vouch(u)
		if err != nil {
			p.cfg.Log.Warn("a process may not give a virtual machine a NIC", "nic", p.cfg.NIC, "pid", who.Pid, "uid", who.UID, "why", err)
			u.Close()
			continue
		}
		serve(p, u, who)
		u.Close()
	}
}

// keep registers a connection for Close; it returns false after Close.
func keep[T any](p *Sockets, at **T, u *T) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	*at = u
	return true
}

// serveLine serves the virtio-serial port for commands and events.
func (p *Sockets) serveLine(u *net.UnixConn, who credentials.Caller) {
	p.serveLineOf(newLine(u, who), nil)
}

// serveLineOf is serveLine for a line whose agent has been greeted, if m is not nil.
func (p *Sockets) serveLineOf(l *line, m *guest) {
	if m == nil && !keep(p, &p.line, l) {
		return
	}
	defer keep(p, &p.line, nil)
	if err := p.serveLink(l, m); err != nil && p.cut.now() {
		p.cfg.Log.Warn("the line to a virtual machine was cut", "nic", p.cfg.NIC, "why", err)
	}
}

// drainEvery is the interval at which written bytes are read from the bell port. Their arrival already wakes the loop.
const drainEvery = 10 * time.Millisecond

// serveBell serves the port at which programs ring.
func (p *Sockets) serveBell(u *net.UnixConn, _ credentials.Caller) {
	if keep(p, &p.bells, u) {
		p.serveBellOf(u)
	}
}

// serveBellOf serves the port until it ends.
func (p *Sockets) serveBellOf(u *net.UnixConn) {
	p.drain(u)
	p.mu.Lock()
	p.bells = nil
	if p.line != nil {
		p.line.conn.Close() // without the bell port, sessions could not be woken
	}
	p.mu.Unlock()
}

// drain reads what programs wrote, except for one byte, until the connection ends. The loop uses edge-triggered epoll, which
// checks again that a socket is readable before it reports an event. If the socket were empty by then, the loop would miss a
// ring. So the socket is never emptied again.
func (p *Sockets) drain(u *net.UnixConn) {
	raw, err := u.SyscallConn()
	if err != nil {
		return
	}
	buf := make([]byte, 64<<10)
	for {
		gone, err := persist(p, u.SetReadDeadline, func() (gone bool, err error) {
			err = raw.Read(func(fd uintptr) bool {
				n, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ)
				if err == nil && n > 1 {
					unix.Read(int(fd), buf[:min(n-1, len(buf))]) // never blocks: n bytes are there
					return true
				}
				hangup := []unix.PollFd{{Fd: int32(fd)}}
				_, perr := unix.Poll(hangup, 0)
				gone = err != nil || perr != nil && perr != unix.EINTR || hangup[0].Revents != 0
				return gone
			})
			return gone, err
		})
		if err != nil || gone {
			return
		}
		p.gate.Outside(func() { time.Sleep(drainEvery) })
	}
}

// bell returns a duplicate of the bell port's socket.
func (p *Sockets) bell() (*os.File, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bells == nil {
		return nil, fmt.Errorf("the machine's bell port is not connected: %w", syscall.ENXIO)
	}
	raw, err := p.bells.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	if cerr := raw.Control(func(old uintptr) { fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) }); cerr != nil {
		return nil, cerr
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "bell"), nil
}

// set sets the current guest; it returns false after Close.
func (p *Sockets) set(m *guest) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.machine = m
	return !p.closed
}

// Revoke ends everything that the guest has opened, and returns when the daemon does not access its memory any more: the
// guest has been reset, or has other memory. Its agent must greet again.
func (p *Sockets) Revoke() {
	if m := p.cutOff(); m != nil {
		m.end()
	}
}

// cutOff is Revoke without waiting. It returns the guest that ends; nil: there is none.
func (p *Sockets) cutOff() *guest {
	p.mu.Lock()
	m, line := p.machine, p.line
	p.mu.Unlock()
	if line != nil {
		line.conn.Close()
	}
	if m != nil {
		m.finish()
	}
	return m
}

// Machine returns the name of the current guest; empty: none.
func (p *Sockets) Machine() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.machine == nil {
		return ""
	}
	return p.machine.name
}

// Close ends everything.
func (p *Sockets) Close() {
	p.mu.Lock()
	p.closed = true
	for _, u := range []*net.UnixConn{p.bells, p.net} {
		if u != nil {
			u.Close()
		}
	}
	if p.line != nil {
		p.line.conn.Close()
	}
	p.mu.Unlock()
	for _, l := range p.listeners {
		l.Close()
	}
	p.work.Wait()
}

// seldom limits a log message that a guest can cause without end to once per minute. It belongs to the port, because an agent
// can create new guests at will.
type seldom struct{ last atomic.Int64 }

// now reports whether the message may be logged again.
func (s *seldom) now() bool { return s.at(time.Now()) }

func (s *seldom) at(t time.Time) bool {
	last := s.last.Load()
	return (last == 0 || t.UnixNano()-last >= int64(time.Minute)) && s.last.CompareAndSwap(last, t.UnixNano())
}
