package etcd

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"vrdma.dev/vrdma/internal/tenancy/store"
)

// Times. Tests have less of most.
var (
	// askTime bounds a request. A member that is elected takes about a second.
	askTime = 5 * time.Second
	// probeEvery is how often etcd is asked whether it is there, and which store it is.
	probeEvery = 5 * time.Second
	// firstTime is how long Open waits for etcd, if there is a copy to start from; else freshTime,
	// and every firstTime the log says what is waited for.
	firstTime = 3 * time.Second
	freshTime = 30 * time.Second
	// relistJitter spreads the lists of many daemons after an outage.
	relistJitter = 2 * time.Second
)

// Store is a store in etcd. doc.go has the layout.
type Store struct {
	cfg    Config
	client *clientv3.Client
	copy   *store.Copy
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup
	// streams counts the streams that watches were opened on. The client opens another by
	// itself when a connection breaks, and at its other end may be another store.
	streams  atomic.Int64
	watching atomic.Bool   // the copy follows
	first    chan struct{} // closed when the copy is in step for the first time

	// committing is held by one commit at a time. Lock order: committing, mu, the copy's.
	committing sync.Mutex
	turn       int64 // guarded by committing: the revision of our key of turns; 0: not known

	mu sync.Mutex
	// The rest is guarded by mu.
	seen     int64            // etcd's revision up to which the copy has everything; 0: list
	physical map[string]int64 // ModRevisions of entries whose revision is another
	pending  *pending         // a large commit that is visible, and whose pieces are being copied
	moved    chan struct{}    // closed and replaced when seen, physical or pending change
	state    store.State
	why      error
	refused  string // why the last request found no connection; "": it did
	problems []string
	changed  chan struct{} // closed and replaced when state changes
	closed   bool
	stop     context.CancelFunc // ends the watch, and begins another; nil: there is none, yet or any more
}

var _ store.Remote = (*Store)(nil)

// Open connects to etcd. If etcd does not answer it is an error, unless there is a copy of what it
// was: then the store is that, and etcd's as soon as it answers.
func Open(cfg Config) (*Store, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Prefix == "" {
		cfg.Prefix = DefaultPrefix
	}
	if !strings.HasSuffix(cfg.Prefix, "/") {
		return nil, fmt.Errorf("the store's prefix %q does not end with /", cfg.Prefix)
	}
	s := &Store{
		cfg: cfg, first: make(chan struct{}), physical: make(map[string]int64),
		moved: make(chan struct{}), changed: make(chan struct{}), state: store.Away,
		why: errors.New("it has not answered yet"),
	}
	if err := s.connect(); err != nil {
		return nil, err
	}
	if err := s.openCopy(); err != nil {
		s.client.Close()
		return nil, err
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.work.Go(s.follow)
	s.work.Go(s.probe)
	s.work.Go(s.tidyOften)
	if err := s.begin(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Store) connect() error {
	secure, err := s.cfg.tls()
	if err != nil {
		return err
	}
	password, err := s.cfg.password()
	if err != nil {
		return err
	}
	scheme := "http://"
	if secure != nil {
		scheme = "https://"
	}
	endpoints := slices.Clone(s.cfg.Endpoints)
	for i := range endpoints {
		endpoints[i] = scheme + endpoints[i]
	}
	nobody := clientv3.Config{Endpoints: endpoints, TLS: secure, Logger: zap.NewNop(), DialTimeout: askTime}
	s.client, err = clientv3.New(clientv3.Config{
		Endpoints: endpoints, TLS: secure, Username: s.cfg.User, Password: password, Logger: zap.NewNop(),
		DialTimeout: askTime,
		// etcd takes pings every 5 s at most. One that was stopped is found after 9 s.
		DialKeepAliveTime: 6 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
		DialOptions: []grpc.DialOption{
			grpc.WithChainStreamInterceptor(s.countStream), grpc.WithChainUnaryInterceptor(s.noteRequest),
			// gRPC would wait two minutes after a long outage.
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.5, MaxDelay: 2 * time.Second}, MinConnectTimeout: 3 * time.Second}),
		},
	})
	if err != nil {
		return fmt.Errorf("the store %s: %w", s.name(), err)
	}
	s.client.Auth = anew{s.client.Auth, nobody}
	return nil
}

// anew asks for tokens as somebody who has none. The client would ask with its old one, and an etcd that has forgotten it (3.4, after a restart, or when the user was
// changed) refuses to be asked with that; then the client asks for a token to ask with, and so on until the time is over, for ever.
type anew struct {
	clientv3.Auth
	nobody clientv3.Config
}

// Authenticate implements clientv3.Auth.
func (a anew) Authenticate(ctx context.Context, user, password string) (*clientv3.AuthenticateResponse, error) {
	c, err := clientv3.New(a.nobody)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.Auth.Authenticate(ctx, user, password)
}

// countStream counts the streams of watches.
func (s *Store) countStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if method == "/etcdserverpb.Watch/Watch" {
		s.streams.Add(1)
	}
	return streamer(ctx, desc, cc, method, opts...)
}

// noteRequest remembers why a request had no answer in time. The client only says that the time is over,
// gRPC what became of the connections meanwhile.
func (s *Store) noteRequest(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	err := invoke(ctx, method, req, reply, cc, opts...)
	why := ""
	if st := status.Convert(err); err != nil && (st.Code() == codes.DeadlineExceeded || st.Code() == codes.Unavailable) {
		why = st.Message()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != context.Canceled {
		s.refused = why
	}
	return err
}

// explain adds to an error what noteRequest knows.
func (s *Store) explain(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !errors.Is(err, context.DeadlineExceeded) || s.refused == "" || s.refused == err.Error() {
		return err
	}
	return fmt.Errorf("%w: %s", err, s.refused)
}

func (s *Store) openCopy() error {
	copied, problems, err := store.OpenCopy(s.cfg.Copy, rand.Text(), func(err error) {
		s.cfg.Log.Warn("the copy of the store cannot be written: after a restart without the store the daemon has an older one", "file", s.cfg.Copy, "error", err)
	})
	if err != nil {
		return fmt.Errorf("the copy of the store: %w", err)
	}
	for _, p := range problems {
		s.cfg.Log.Warn("an entry of the store's copy is left out", "file", s.cfg.Copy, "why", p)
	}
	s.copy = copied
	return nil
}

// begin waits until the copy is in step, or is seen not to be.
func (s *Store) begin() error {
	wait, have := cmp.Or(s.cfg.fresh, freshTime), s.copy.Revision() > 0
	if have {
		wait = firstTime
	}
	over := time.After(wait)
	say := time.NewTicker(firstTime)
	defer say.Stop()
	for {
		changed := s.Changed()
		if h := s.Health(); h.State == store.Strange {
			if have {
				return nil
			}
			return h.Why
		}
		select {
		case <-s.first:
			return nil
		case <-changed:
		case <-say.C:
			if !have {
				s.cfg.Log.Warn("waiting for the store: there is no copy of it to start from", "store", s.name(), "for", wait, "error", s.Health().Why)
			}
		case <-over:
			h := s.Health()
			if !have {
				return fmt.Errorf("the store %s does not answer, and this daemon has no copy of it yet to start from: %w; see that etcd runs there and that --store and --store-config are right", s.name(), h.Why)
			}
			s.cfg.Log.Warn("the store does not answer: starting with what it last said", "store", s.name(), "heard", h.Heard, "error", h.Why)
			return nil
		}
	}
}

// name is the store's for messages.
func (s *Store) name() string { return Scheme + strings.Join(s.cfg.Endpoints, ",") }

// key is a key in etcd.
func (s *Store) key(key string) string { return s.cfg.Prefix + key }

func (s *Store) List(prefix string) ([]store.Entry, int64, error) { return s.copy.List(prefix) }

func (s *Store) Watch(prefix string, revision int64) store.Watcher {
	return s.copy.Watch(prefix, revision)
}

// Close ends it. Entries of Alive stay until their time is over.
func (s *Store) Close() error {
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	s.mu.Unlock()
	if closed {
		return nil
	}
	s.cancel()
	err := s.copy.Close() // watchers end
	s.work.Wait()
	s.committing.Lock() // a commit that runs has ended with the context
	s.endTurns()
	s.committing.Unlock()
	if e := s.client.Close(); e != nil && !errors.Is(e, context.Canceled) {
		err = errors.Join(err, e)
	}
	return err
}

// ask is the context of one request.
func (s *Store) ask() (context.Context, context.CancelFunc) {
	return context.WithTimeout(s.ctx, askTime)
}

// await waits until a condition holds; it is called with mu held. It reports whether it does.
func (s *Store) await(ctx context.Context, holds func() bool) bool {
	for {
		s.mu.Lock()
		if holds() {
			s.mu.Unlock()
			return true
		}
		moved := s.moved
		s.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
			return false
		}
	}
}

// move tells those who await. mu is held.
func (s *Store) move() {
	close(s.moved)
	s.moved = make(chan struct{})
}
