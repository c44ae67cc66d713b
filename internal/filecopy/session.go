package filecopy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	// filesAhead is how many entries may be offered or in progress at a time.
	filesAhead = 32
	// maxStreams is the largest number of streams.
	maxStreams = 16
)

// A session is one side of a copy. One goroutine reads its control connection and passes the messages to the sender or receiver. Each
// stream has a goroutine of its own. The first error of any ends all.
type session struct {
	ctx     context.Context
	cancel  context.CancelCauseFunc
	control conn
	here    bool   // the peer is on this machine
	rdma    bool   // and not TCP
	rise    func() // undoes the session's pinning (seat.go); nil: it is not pinned
	tasks   sync.WaitGroup

	mu      sync.Mutex
	streams []conn // guarded by mu
	heard   bool   // guarded by mu: a message came since the last keepalive
	ended   bool   // guarded by mu: no more streams are accepted
}

// newSession returns a session over a transport.
func newSession(ctx context.Context, at transport, control conn) *session {
	s := &session{control: control, here: here(at, control), rdma: at.name() == nameRDMA}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	return s
}

// sit pins the process for the side that sends or receives.
func (s *session) sit(sends bool) { s.rise = process.sit(sends, s.here, s.rdma) }

var errFinished = errors.New("finished")

// do runs f in a goroutine of the session. Its error ends the session.
func (s *session) do(f func() error) {
	s.tasks.Go(func() {
		if err := f(); err != nil {
			s.cancel(err)
		}
	})
}

// add adds a stream, which f serves.
func (s *session) add(c conn, f func(conn) error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	s.streams = append(s.streams, c)
	s.do(func() error { return f(c) })
	return true
}

// run reads the control connection until handle returns that everything is done. It returns how the session ended.
func (s *session) run(handle func(message) error) error {
	s.do(s.keepAlive)
	// Calls that wait in a stream return when it is shut.
	defer context.AfterFunc(s.ctx, s.shut)()
	for {
		m, err := s.control.recv(s.ctx)
		if err == nil {
			s.mu.Lock()
			s.heard = true
			s.mu.Unlock()
			switch m := m.(type) {
			case *alive:
			case *refusal:
				err = &RefusedError{m.Text}
			default:
				err = handle(m)
			}
		}
		if err != nil {
			s.cancel(err)
			break
		}
	}
	err := context.Cause(s.ctx)
	var b *BrokenError
	var r *RefusedError
	if !errors.Is(err, errFinished) && !errors.As(err, &b) && !errors.As(err, &r) {
		s.do(func() error { return s.control.send(&refusal{Text: err.Error()}) })
		linger(s.control)
	}
	return err
}

// linger waits a moment for the peer to disconnect, so that it receives the last message.
func linger(c conn) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	for {
		if _, err := c.recv(ctx); err != nil {
			return
		}
	}
}

// shut ends the streams.
func (s *session) shut() {
	s.mu.Lock()
	s.ended = true
	list := s.streams
	s.mu.Unlock()
	for _, c := range list {
		c.shut()
	}
}

// close releases everything. No goroutine uses the session any more.
func (s *session) close() {
	s.cancel(errFinished)
	s.shut()
	s.control.shut()
	s.tasks.Wait()
	for _, c := range s.streams {
		c.close()
	}
	s.control.close()
	if s.rise != nil {
		s.rise()
	}
}

// keepAlive sends keepalives and notices when the peer is lost.
func (s *session) keepAlive() error {
	t := time.NewTicker(aliveEvery)
	defer t.Stop()
	quiet := 0
	said := make(chan struct{}, 1) // a peer that receives nothing blocks one goroutine only
	for {
		select {
		case <-s.ctx.Done():
			return nil
		case <-t.C:
		}
		s.mu.Lock()
		if s.heard {
			quiet = 0
		}
		s.heard = false
		s.mu.Unlock()
		if quiet++; quiet > silent {
			return &BrokenError{fmt.Errorf("nothing came from the other side for %v", silent*aliveEvery)}
		}
		select {
		case said <- struct{}{}:
			s.do(func() error {
				defer func() { <-said }()
				return s.control.send(&alive{})
			})
		default:
		}
	}
}
