package filecopy

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// A Client copies files to or from a server.
type Client struct {
	// Open opens the transport for connections. Every attempt has one of its own.
	Open func(context.Context) (Transport, error)
	// Addrs are the possible addresses of the server, tried in order.
	Addrs []string
	Key   []byte // nil: none

	Recursive bool
	Preserve  bool
	Overwrite bool
	Streams   int
	Slots     int           // chunks in flight on each stream; 0: chosen by the path (pace.go)
	Patience  time.Duration // how long to retry a broken connection without progress

	Report   func(path string, err error) // called for an entry that was not copied
	Notice   func(text string)            // called with messages for the user
	Progress *Progress

	id [sessionSize]byte // the same for all attempts

	mu     sync.Mutex
	done   map[string]bool // guarded by mu: copied entries
	failed bool            // guarded by mu: an entry failed
}

// ErrSome means that some entries were not copied. Report was called for each.
var ErrSome = errors.New("not everything was copied")

// Put copies local files to a path of the server. into requires that the path is a directory.
func (c *Client) Put(ctx context.Context, paths []string, to string, into bool) error {
	into = into || nameless(paths) // a source without a name cannot be renamed
	q := &request{Put: true, Recursive: c.Recursive, Preserve: c.Preserve, Overwrite: c.Overwrite, Into: into, Path: to}
	return c.persist(ctx, func(ctx context.Context) error { return c.put(ctx, q, paths) })
}

// Get copies files of the server to a local path. into requires that the path is a directory.
func (c *Client) Get(ctx context.Context, paths []string, to string, into bool) error {
	exact, made := false, make(map[string]bool)
	q := &request{Recursive: c.Recursive, Preserve: c.Preserve}
	return c.persist(ctx, func(ctx context.Context) error { return c.get(ctx, q, paths, to, into, &exact, made) })
}

// persist repeats attempts until one succeeds, fails for another reason than the connection, or makes no progress for Patience.
func (c *Client) persist(ctx context.Context, attempt func(context.Context) error) error {
	c.done = make(map[string]bool)
	rand.Read(c.id[:])
	wait := 100 * time.Millisecond
	last, moved := time.Now(), uint64(0)
	for tries := 0; ; tries++ {
		c.Progress.again()
		err := attempt(ctx)
		var b *BrokenError
		switch {
		case err == nil && c.failed:
			return ErrSome
		case err == nil, ctx.Err() != nil, !errors.As(err, &b):
			return err
		}
		if now := c.Progress.Moved(); now != moved {
			last, moved, wait = time.Now(), now, 100*time.Millisecond
		} else if tries == 0 && moved == 0 && errors.Is(err, errUnmade) {
			return fmt.Errorf("%w; see that the other side serves at that address, and that the daemons of both hosts reach each other", b.err)
		} else if time.Since(last) > c.Patience {
			return err
		}
		c.Notice(fmt.Sprintf("%v; trying again", err))
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
			wait = min(2*wait, 3*time.Second)
		}
	}
}

// errUnmade means that the connection was never established.
var errUnmade = errors.New("no connection")

// dialAny connects to the first address that answers.
func (c *Client) dialAny(ctx context.Context, p Transport) (conn, string, error) {
	var errs []error
	for _, addr := range c.Addrs {
		one, cancel := context.WithTimeout(ctx, dialTime)
		k, err := p.dial(one, addr)
		cancel()
		if err == nil {
			return k, addr, nil
		}
		errs = append(errs, err)
	}
	return nil, "", &BrokenError{fmt.Errorf("%w: %w", errUnmade, errors.Join(errs...))}
}

// begin makes the control connection and requests a session.
func (c *Client) begin(ctx context.Context, p Transport, q *request) (*session, *granted, string, error) {
	k, addr, err := c.dialAny(ctx, p)
	if err != nil {
		return nil, nil, "", err
	}
	first, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	q.Streams, q.Slots, q.Copy = uint8(c.Streams), uint8(slotsOf(c.Slots, here(p, k))), c.id
	g, err := func() (*granted, error) {
		if err := introduce(first, k, c.Key, &answer{}); err != nil {
			return nil, err
		}
		if err := k.send(q); err != nil {
			return nil, err
		}
		m, err := k.recv(first)
		if err != nil {
			return nil, err
		}
		switch m := m.(type) {
		case *granted:
			return m, nil
		case *refusal:
			return nil, &RefusedError{m.Text}
		}
		return nil, violation("%T, not the answer to a request", m)
	}()
	if err != nil {
		k.close()
		return nil, nil, "", err
	}
	return newSession(ctx, p, k), g, addr, nil
}

// connect makes the streams of a session: on one machine only those that will be used (pace.go).
func (c *Client) connect(s *session, p Transport, g *granted, addr string, serve func(conn) error) {
	n := min(int(g.Streams), c.Streams)
	if s.here {
		n = min(n, fewStreams(runtime.NumCPU()))
	}
	for i := range n {
		s.do(func() error {
			ctx, cancel := context.WithTimeout(s.ctx, dialTime)
			defer cancel()
			k, err := p.dial(ctx, addr)
			if err != nil {
				return broken(s.ctx, err)
			}
			if err := introduce(ctx, k, c.Key, &answer{Stream: uint8(i + 1), Session: g.Session}); err != nil {
				k.close()
				return err
			}
			if !s.add(k, serve) {
				k.close()
			}
			return nil
		})
	}
}

func (c *Client) report(path string, err error) {
	c.mu.Lock()
	c.failed = true
	c.mu.Unlock()
	c.Report(path, err)
}

func (c *Client) copied(path string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done[path] = true
}

func (c *Client) isCopied(path string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.done[path]
}

// put is one attempt to send.
func (c *Client) put(ctx context.Context, q *request, paths []string) error {
	p, err := c.Open(ctx)
	if err != nil {
		return c.reopen(err)
	}
	defer p.Close()
	s, g, addr, err := c.begin(ctx, p, q)
	if err != nil {
		return err
	}
	defer s.close()
	q.Exact = g.Exact
	x := newSender(s, Everywhere())
	x.recursive, x.progress = c.Recursive, c.Progress
	x.report, x.skipped, x.finished = c.report, c.isCopied, c.copied
	c.connect(s, p, g, addr, x.stream)
	s.do(func() error { return x.walk(paths) })
	err = s.run(x.handle)
	s.close()
	x.close()
	if errors.Is(err, errFinished) {
		return nil
	}
	return err
}

// nameless reports whether the paths mean the content of a directory, such as . or all that a server serves.
func nameless(paths []string) bool {
	return slices.ContainsFunc(paths, func(p string) bool { return topName(p) == "" })
}

// get is one attempt to receive.
func (c *Client) get(ctx context.Context, q *request, paths []string, to string, into bool, exact *bool, made map[string]bool) error {
	t, err := Everywhere().newTarget(to, into, *exact)
	if err != nil {
		return err
	}
	if nameless(paths) {
		// The served directory has no name: the target is made, and all entries go below it.
		if err := t.enter(); err != nil {
			return err
		}
	}
	*exact = t.rename != ""
	p, err := c.Open(ctx)
	if err != nil {
		t.dir.Close()
		return c.reopen(err)
	}
	defer p.Close()
	s, g, addr, err := c.begin(ctx, p, q)
	if err != nil {
		t.dir.Close()
		return err
	}
	defer s.close()
	r := newReceiver(s, t, slotsOf(c.Slots, s.here))
	r.preserve, r.overwrite, r.progress = c.Preserve, c.Overwrite, c.Progress
	r.wishes, r.made = newWishes(paths, c.Recursive), made
	r.report, r.skipped, r.finished = c.report, c.isCopied, c.copied
	c.connect(s, p, g, addr, r.stream)
	s.do(func() error {
		for _, path := range paths {
			if err := s.control.send(&want{Path: path}); err != nil {
				return err
			}
		}
		return s.control.send(&finish{})
	})
	err = s.run(r.handle)
	s.close()
	r.close()
	if err = r.result(err); err != nil && len(r.left) > 0 {
		c.Notice(fmt.Sprintf("what has come of %s is kept as %s: the same command goes on from there", strings.Join(r.left, ", "), ".NAME"+partialSuffix))
	}
	return err
}

// reopen makes a failure to open the device retriable after a first success.
func (c *Client) reopen(err error) error {
	if c.Progress.Moved() > 0 {
		return &BrokenError{err}
	}
	return err
}
