package vmagent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/client/vm/vmproto"
)

// Config has the settings of an Agent.
type Config struct {
	Socket string      // path at which programs connect
	Mode   fs.FileMode // of the socket
	Tree   string      // directory of the sysfs tree
	Name   string      // name of the machine
	Share  int         // percent of the machine's memory that may be pinned
	Log    *slog.Logger
}

// An Agent serves the programs of a machine.
type Agent struct {
	cfg    Config
	line   *agentPort
	bell   int // -1: programs ring with frames
	pinner *pinner

	mu      sync.Mutex
	ready   bool // the daemon has sent a Welcome
	last    uint32
	clients map[uint32]*client
	handles map[uint32]*handle
	pins    map[uint32][]*pinned // by number
	lastPin uint32
	tokens  map[protocol.Token]*client // programs, by the daemon's token

	// gids are the GIDs, by the file that names their interface, and named the content of these files. Only the goroutine that
	// reads from the daemon uses them.
	gids  map[string]netip.Addr
	named map[string]string
}

// Run serves until ctx ends.
func Run(ctx context.Context, cfg Config) error {
	p, err := newPinner(cfg.Share)
	if err != nil {
		return err
	}
	a := &Agent{cfg: cfg, bell: -1, pinner: p}
	a.forget()
	fd, err := openPort(LinePort, 0)
	if err != nil {
		return err
	}
	a.line = &agentPort{fd: fd}
	if a.bell, err = openPort(BellPort, unix.O_NONBLOCK); err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		a.bell = -1
		cfg.Log.Warn("programs ring through the agent, which is slow", "why", err)
	}
	if err := os.Remove(cfg.Socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: cfg.Socket, Net: "unixpacket"})
	if err != nil {
		return err
	}
	defer l.Close()
	if err := os.Chmod(cfg.Socket, cfg.Mode); err != nil {
		return err
	}
	failed := make(chan error, 1)
	go func() { failed <- a.converse() }()
	go func() {
		if err := a.accept(l); !errors.Is(err, net.ErrClosed) {
			failed <- err
		}
	}()
	select {
	case <-ctx.Done():
		l.Close()
		a.retire()
		return nil
	case err := <-failed:
		return err
	}
}

// accept takes connections of programs.
func (a *Agent) accept(l *net.UnixListener) error {
	for {
		u, err := l.AcceptUnix()
		if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		if err != nil {
			return err
		}
		// Without a daemon, programs wait: it may be restarting.
		c := a.admit(u)
		for end := time.Now().Add(patience); c == nil && time.Now().Before(end); c = a.admit(u) {
			time.Sleep(20 * time.Millisecond)
		}
		if c == nil {
			u.Close()
			continue
		}
		go c.listen()
		go c.speak()
	}
}

// admit turns a connection into a conversation; nil if there is no daemon.
func (a *Agent) admit(u *net.UnixConn) *client {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.ready {
		return nil
	}
	for a.last++; a.last == 0 || a.clients[a.last] != nil; {
		a.last++
	}
	c := &client{a: a, id: a.last, conn: protocol.NewConn(u), out: make(chan message, mostMessages), gone: make(chan struct{})}
	a.clients[c.id] = c
	return c
}

const (
	// greetEvery is the time after which a greeting is repeated: a daemon that has not received it does not answer.
	greetEvery = 5 * time.Second
	// patience is how long a program that connects waits for the daemon.
	patience = 8 * time.Second
)

// converse talks to one daemon after the other.
func (a *Agent) converse() error {
	for {
		r, err := a.greet()
		if err == nil {
			a.cfg.Log.Info("the daemon answers", "socket", a.cfg.Socket)
			for err == nil {
				var f vmproto.Frame
				if f, err = r.Next(); err == nil {
					err = a.take(f)
				}
			}
			a.cfg.Log.Warn("the daemon is gone, and programs' devices with it", "why", err)
		}
		a.hangUp()
		if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EBADF) {
			return fmt.Errorf("the port is gone: %w", err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// greet greets until the daemon answers. The answer means that all state of earlier connections is gone.
func (a *Agent) greet() (*vmproto.Reader, error) {
	var nonce [16]byte
	rand.Read(nonce[:])
	done := make(chan struct{})
	defer close(done)
	hello := vmproto.AppendHello(nil, vmproto.Greeting{Nonce: nonce, Version: vmproto.Version, Name: a.cfg.Name})
	go func() {
		for {
			a.line.raw(hello)
			select {
			case <-done:
				return
			case <-time.After(greetEvery):
			}
		}
	}()
	r := vmproto.NewReader(a.line)
	for {
		w, err := r.FindWelcome()
		switch {
		case err != nil:
			return nil, err
		case w.Nonce != nonce:
		case w.Text != "":
			a.cfg.Log.Error("the daemon refuses", "why", w.Text)
			time.Sleep(greetEvery)
			return nil, errors.New(w.Text)
		default:
			a.forget()
			return r, nil
		}
	}
}

// hangUp ends the conversations with programs. Pages stay pinned: the daemon may still use them.
func (a *Agent) hangUp() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ready = false
	for _, c := range a.clients {
		c.conn.Close()
	}
}

// retire ends the conversations with programs and waits until the daemon has released their pages: the pins end with this process.
func (a *Agent) retire() {
	a.hangUp()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		a.mu.Lock()
		left := len(a.clients) + len(a.pins)
		a.mu.Unlock()
		if left == 0 {
			return
		}
	}
	a.cfg.Log.Warn("the daemon does not answer: memory that it may still use is not pinned any more")
}

// forget releases everything of an earlier connection, after the daemon has.
func (a *Agent) forget() {
	a.mu.Lock()
	clients, handles, pins := a.clients, a.handles, a.pins
	a.clients, a.handles, a.pins = make(map[uint32]*client), make(map[uint32]*handle), make(map[uint32][]*pinned)
	a.tokens = make(map[protocol.Token]*client)
	a.ready = clients != nil
	a.mu.Unlock()
	for _, c := range clients {
		c.conn.Close()
		c.free()
	}
	for _, h := range handles {
		h.close()
	}
	for _, list := range pins {
		a.release(list)
	}
}

// take handles a frame.
func (a *Agent) take(f vmproto.Frame) error {
	switch f.Kind {
	case vmproto.File:
		return a.write(f.Body)
	case vmproto.Unpin:
		a.unpin(f.ID)
		return nil
	case vmproto.Event, vmproto.Raise, vmproto.Lower, vmproto.Drop:
		a.event(f)
		return nil
	case vmproto.Welcome: // the answer to a repeated greeting: the daemon has started again
		return errors.New("the daemon has welcomed us again")
	}
	a.mu.Lock()
	c := a.clients[f.ID]
	a.mu.Unlock()
	if c == nil {
		return nil
	}
	switch f.Kind {
	case vmproto.Message:
		c.answer(append([]byte(nil), f.Body...))
	case vmproto.Handle:
		n, err := vmproto.ParseNumber(f.Body)
		if err != nil {
			return err
		}
		c.attach(uint32(n))
	case vmproto.Recall:
		return c.recall()
	case vmproto.Grow:
		n, err := vmproto.ParseNumber(f.Body)
		if err != nil {
			return err
		}
		return c.grow(n)
	case vmproto.Close:
		a.mu.Lock()
		delete(a.clients, c.id)
		if a.tokens[c.token] == c {
			delete(a.tokens, c.token)
		}
		a.mu.Unlock()
		c.conn.Close()
		c.free()
	default:
		return fmt.Errorf("%w: kind %d from the daemon", vmproto.ErrMalformed, f.Kind)
	}
	return nil
}

// write writes a file of the sysfs tree.
func (a *Agent) write(body []byte) error {
	name, content, err := vmproto.ParseFile(body)
	if err != nil {
		return err
	}
	if !filepath.IsLocal(name) {
		return fmt.Errorf("%w: file %q", vmproto.ErrMalformed, name)
	}
	if netdevFile(name) || parentFile(name) {
		return nil
	}
	if netdev, ok := gidFile(name); ok {
		a.learn(netdev, string(content))
	}
	path := filepath.Join(a.cfg.Tree, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o644)
}

// unpin ends a pin that the daemon has released.
func (a *Agent) unpin(id uint32) {
	a.mu.Lock()
	list := a.pins[id]
	delete(a.pins, id)
	a.mu.Unlock()
	a.release(list)
}

func (a *Agent) release(list []*pinned) {
	for _, p := range list {
		a.pinner.unpin(p)
	}
}

// keep numbers the pins of a request.
func (a *Agent) keep(list []*pinned) uint32 {
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.lastPin++; a.lastPin == 0 || a.pins[a.lastPin] != nil; {
		a.lastPin++
	}
	a.pins[a.lastPin] = list
	return a.lastPin
}

// event handles an event for a handle.
func (a *Agent) event(f vmproto.Frame) {
	if f.Kind == vmproto.Drop {
		a.mu.Lock()
		h := a.handles[f.ID]
		delete(a.handles, f.ID)
		a.mu.Unlock()
		if h != nil {
			h.close()
		}
		return
	}
	h, err := a.handle(f.ID)
	if err != nil {
		a.cfg.Log.Warn("an event is lost", "error", err)
		return
	}
	switch f.Kind {
	case vmproto.Event:
		h.post(f.Body)
	case vmproto.Raise:
		h.post([]byte{1})
	case vmproto.Lower:
		h.lower()
	}
}

// handle returns the handle with a number, and creates it if necessary.
func (a *Agent) handle(id uint32) (*handle, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if h := a.handles[id]; h != nil {
		return h, nil
	}
	h, err := newHandle(id)
	if err == nil {
		a.handles[id] = h
	}
	return h, err
}
