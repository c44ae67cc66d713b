package filecopy

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A Transport makes and accepts connections: OpenRDMA or TCP returns one.
type Transport struct{ transport }

// Name is RDMA or TCP.
func (p Transport) Name() string { return p.name() }

// Addresses returns the addresses for peers.
func (p Transport) Addresses() []netip.Addr { return p.addresses() }

// Close closes the transport.
func (p Transport) Close() error { return p.close() }

const (
	// maxStrangers is how many peers may be in their handshake, maxSessions how many sessions are served at a time.
	maxStrangers = 64
	maxSessions  = 64
	// serverSlots is how many slots a stream has at a server at most.
	serverSlots = 8
	// maxMemory is how many slots all sessions of a server have together. A stream counts as one more, for its messages.
	maxMemory = 1536
	// maxWants is how many bytes of paths a client may request.
	maxWants = 4 << 20
)

// A Server lets clients copy files to and from this host.
type Server struct {
	Files     Files
	Key       []byte // nil: every client may
	Write     bool   // clients may send files
	Overwrite bool   // clients may ask to overwrite
	Log       func(format string, args ...any)

	chunkTime time.Duration // of ServeOne; 0: oneTime
	at        Transport     // where it accepts connections

	mu       sync.Mutex
	sessions map[[sessionSize]byte]*served // guarded by mu
	memory   int                           // guarded by mu: their share of maxMemory
	broken   []*attempts                   // guarded by mu: commands that may be retried, the most recent last
}

// attempts are the attempts of one command to send files here, the last of which broke.
type attempts struct {
	copy [sessionSize]byte
	made map[string]bool // directories that they made
}

// A served is a session that waits for its streams, or has them.
type served struct {
	*session
	stream  func(conn) error
	id      [sessionSize]byte
	copy    [sessionSize]byte
	ended   chan struct{} // closed when all its resources are released
	missing int           // guarded by Server.mu: streams that are not connected yet
	slots   int           // of a stream
	memory  int           // guarded by Server.mu: its share of maxMemory
}

// Serve accepts connections at an address until ctx ends. It calls ready when it listens.
func (v *Server) Serve(ctx context.Context, at Transport, addr string, ready func(addr string)) error {
	l, err := at.listen(addr)
	if err != nil {
		return err
	}
	defer l.close()
	v.sessions, v.at = make(map[[sessionSize]byte]*served), at
	ctx, cancel := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel()
	strangers := make(chan struct{}, maxStrangers)
	ready(l.addr())
	for {
		make, err := l.accept(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			if v.exhausted(ctx, err) {
				continue
			}
			return err
		}
		select {
		case strangers <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		tasks.Go(func() {
			leave := sync.OnceFunc(func() { <-strangers })
			defer leave()
			v.connection(ctx, make, leave)
		})
	}
}

// exhausted reports whether accepting failed for lack of a resource that others will release. It waits a moment for that.
func (v *Server) exhausted(ctx context.Context, err error) bool {
	if !slices.ContainsFunc([]error{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM}, func(e error) bool { return errors.Is(err, e) }) {
		return false
	}
	v.Log("a connection was not taken: %v", err)
	select {
	case <-ctx.Done():
	case <-time.After(100 * time.Millisecond):
	}
	return true
}

// connection serves one connection. It calls known after the handshake.
func (v *Server) connection(ctx context.Context, make func(context.Context) (conn, error), known func()) {
	first, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	c, err := make(first)
	if err != nil {
		v.Log("a connection was not made: %v", err)
		return
	}
	a, err := greet(first, c, v.Key)
	if err != nil {
		v.Log("%s: %v", c.remote(), err)
		c.close()
		return
	}
	if a.Stream > 0 {
		v.join(c, a)
		return
	}
	m, err := c.recv(first)
	if err != nil {
		v.Log("%s: %v", c.remote(), err)
		c.close()
		return
	}
	q, ok := m.(*request)
	if !ok {
		v.Log("%s: %v", c.remote(), refuse(c, violation("%T, not a request", m)))
		c.close()
		return
	}
	known()
	v.serve(ctx, c, q)
}

// join gives a stream to its session.
func (v *Server) join(c conn, a *answer) {
	v.mu.Lock()
	s := v.sessions[a.Session]
	if s != nil && s.missing > 0 {
		s.missing--
	} else {
		s = nil
	}
	v.mu.Unlock()
	if s == nil || !s.add(c, s.stream) {
		c.close()
	}
}

// serve serves a session.
func (v *Server) serve(ctx context.Context, c conn, q *request) {
	s := &served{session: newSession(ctx, v.at, c), copy: q.Copy, ended: make(chan struct{}), slots: int(min(max(q.Slots, 1), serverSlots))}
	defer close(s.ended)
	who := c.remote()
	v.replace(s)
	var err error
	if q.Put {
		err = v.receive(s, q)
	} else {
		err = v.send(s, q)
	}
	v.mu.Lock()
	delete(v.sessions, s.id)
	v.memory -= s.memory
	v.mu.Unlock()
	if err != nil {
		v.Log("%s: %v", who, err)
	}
}

// replace ends the session of an earlier attempt of the same command. That session may not have noticed that its connection is broken,
// and holds the partial files.
func (v *Server) replace(s *served) {
	var old []*served
	v.mu.Lock()
	for _, o := range v.sessions {
		if o.copy == s.copy && s.copy != [sessionSize]byte{} {
			old = append(old, o)
		}
	}
	v.mu.Unlock()
	for _, o := range old {
		o.cancel(&BrokenError{errors.New("the client has begun anew")})
		<-o.ended
	}
}

// madeBefore returns the directories that earlier attempts of the command made. They did not exist before, so their attributes are set
// at the end.
func (v *Server) madeBefore(copy [sessionSize]byte) map[string]bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	i := slices.IndexFunc(v.broken, func(a *attempts) bool { return a.copy == copy })
	if i < 0 {
		return make(map[string]bool)
	}
	made := v.broken[i].made
	v.broken = slices.Delete(v.broken, i, i+1)
	return made
}

// mostMade is how many directories of a broken copy are remembered.
const mostMade = 1 << 16

// remember stores the directories of a broken attempt for the next one. Commands that are not retried are dropped after some others.
func (v *Server) remember(copy [sessionSize]byte, made map[string]bool) {
	if len(made) == 0 || len(made) > mostMade || copy == [sessionSize]byte{} {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.broken) >= maxSessions {
		v.broken = slices.Delete(v.broken, 0, 1)
	}
	v.broken = append(v.broken, &attempts{copy, made})
}

// grant lets the client begin.
func (v *Server) grant(s *served, q *request, exact bool) error {
	g := &granted{Streams: min(max(q.Streams, 1), maxStreams), Exact: exact}
	rand.Read(g.Session[:])
	s.id = g.Session
	v.mu.Lock()
	if len(v.sessions) >= maxSessions {
		v.mu.Unlock()
		return refuse(s.control, fmt.Errorf("%d copies are under way here: try again later", maxSessions))
	}
	need := int(g.Streams) * (s.slots + 1)
	if v.memory+need > maxMemory {
		v.mu.Unlock()
		return refuse(s.control, fmt.Errorf("the copies that are under way here have all of its memory for chunks, %d MiB: try again later, or with fewer --streams and --chunks", maxMemory))
	}
	v.memory += need
	s.memory = need
	s.missing = int(g.Streams)
	v.sessions[g.Session] = s
	v.mu.Unlock()
	return s.control.send(g)
}

// receive receives files from a client.
func (v *Server) receive(s *served, q *request) error {
	defer s.close()
	if !v.Write {
		return refuse(s.control, errors.New("files can only be fetched here: the server was started without --write"))
	}
	if q.Overwrite && !v.Overwrite {
		return refuse(s.control, errors.New("nothing is overwritten here: the server was started without --overwrite"))
	}
	to, err := v.Files.newTarget(q.Path, q.Into, q.Exact)
	if err != nil {
		return refuse(s.control, fmt.Errorf("%s: %w", name(q.Path), plain(err)))
	}
	r := newReceiver(s.session, to, s.slots)
	r.preserve, r.overwrite, r.made = q.Preserve, q.Overwrite, v.madeBefore(q.Copy)
	who := s.control.remote()
	r.report = func(path string, err error) { v.Log("%s: %s: %v", who, path, err) }
	r.finished = func(path string) { v.Log("%s: %s: received", who, path) }
	s.stream = r.stream
	if err := v.grant(s, q, to.rename != ""); err != nil {
		to.dir.Close()
		return err
	}
	err = s.run(r.handle)
	s.close()
	r.close()
	if err = r.result(err); err != nil {
		v.remember(q.Copy, r.made)
	}
	return err
}

// send sends files to a client.
func (v *Server) send(s *served, q *request) error {
	defer s.close()
	x := newSender(s.session, v.Files)
	who := s.control.remote()
	x.recursive, x.slots = q.Recursive, s.slots
	x.report = func(path string, err error) { v.Log("%s: %s: %v", who, path, err) }
	x.finished = func(path string) { v.Log("%s: %s: sent", who, path) }
	s.stream = x.stream
	if err := v.grant(s, q, false); err != nil {
		return err
	}
	var paths []string
	size, asked := 0, false
	err := s.run(func(m message) error {
		switch m := m.(type) {
		case *want:
			if size += len(m.Path) + 16; size > maxWants || asked {
				return violation("too many paths, or one too late")
			}
			paths = append(paths, m.Path)
			return nil
		case *finish:
			if asked {
				return violation("the end of its wishes twice")
			}
			asked = true
			s.do(func() error { return x.walk(paths) })
			return nil
		}
		return x.handle(m)
	})
	s.close()
	x.close()
	if errors.Is(err, errFinished) {
		return nil
	}
	return err
}

// result returns how a session ended for its receiver. The sender disconnects when it knows that everything is done.
func (r *receiver) result(err error) error {
	if r.all || errors.Is(err, errFinished) {
		return nil
	}
	return err
}

// name is a path for messages to users.
func name(p string) string {
	if p == "" {
		return "/"
	}
	return p
}
