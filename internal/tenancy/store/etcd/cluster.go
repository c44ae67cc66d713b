package etcd

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"vrdma.dev/vrdma/internal/tenancy/store"
)

// A cluster is the connection to an etcd cluster, the copy of what it last said, and the translation between
// entries and etcd's keys. Every part of a Store uses it.
type cluster struct {
	cfg    Config
	client *clientv3.Client
	copy   *store.Copy
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	// streams counts the streams that watches were opened on. The client opens a new stream by itself when a
	// connection breaks, and the new stream may lead to another store.
	streams atomic.Int64

	mu      sync.Mutex // a leaf
	refused string     // guarded by mu: why the last request found no connection; "": it found one
}

// dial makes a cluster. The connection itself is made in the background.
func dial(cfg Config) (*cluster, error) {
	e := &cluster{cfg: cfg}
	if err := e.connect(); err != nil {
		return nil, err
	}
	if err := e.openCopy(); err != nil {
		e.client.Close()
		return nil, err
	}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	return e, nil
}

// connect makes the client.
func (e *cluster) connect() error {
	secure, err := e.cfg.tls()
	if err != nil {
		return err
	}
	password, err := e.cfg.password()
	if err != nil {
		return err
	}
	scheme := "http://"
	if secure != nil {
		scheme = "https://"
	}
	endpoints := slices.Clone(e.cfg.Endpoints)
	for i := range endpoints {
		endpoints[i] = scheme + endpoints[i]
	}
	nobody := clientv3.Config{Endpoints: endpoints, TLS: secure, Logger: zap.NewNop(), DialTimeout: askTime}
	e.client, err = clientv3.New(clientv3.Config{
		Endpoints: endpoints, TLS: secure, Username: e.cfg.User, Password: password, Logger: zap.NewNop(),
		DialTimeout: askTime, MaxCallRecvMsgSize: cmp.Or(e.cfg.part, mostAnswer),
		// etcd takes pings every 5 s at most. One that was stopped is found after 9 s.
		DialKeepAliveTime: 6 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
		DialOptions: []grpc.DialOption{
			grpc.WithChainStreamInterceptor(e.countStream), grpc.WithChainUnaryInterceptor(e.noteRequest),
			// gRPC would wait two minutes after a long outage.
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.5, MaxDelay: 2 * time.Second}, MinConnectTimeout: 3 * time.Second}),
		},
	})
	if err != nil {
		return fmt.Errorf("the store %s: %w", e.name(), err)
	}
	e.client.Auth = anew{e.client.Auth, nobody}
	return nil
}

// anew requests tokens over a connection without a token. The client would send its old token with the request.
// etcd 3.4 forgets tokens at a restart and when the user changes, and rejects the request. The client then requests
// a token for that request, and so on until the deadline.
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
func (e *cluster) countStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if method == "/etcdserverpb.Watch/Watch" {
		e.streams.Add(1)
	}
	return streamer(ctx, desc, cc, method, opts...)
}

// noteRequest remembers why a request had no answer in time. The client reports only that the deadline has passed;
// gRPC reports the state of the connections.
func (e *cluster) noteRequest(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	err := invoke(ctx, method, req, reply, cc, opts...)
	why := ""
	if st := status.Convert(err); err != nil && (st.Code() == codes.DeadlineExceeded || st.Code() == codes.Unavailable) {
		why = st.Message()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if ctx.Err() != context.Canceled {
		e.refused = why
	}
	return err
}

// explain adds to an error what noteRequest remembers.
func (e *cluster) explain(err error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !errors.Is(err, context.DeadlineExceeded) || e.refused == "" || e.refused == err.Error() {
		return err
	}
	return fmt.Errorf("%w: %s", err, e.refused)
}

// openCopy opens the copy of what etcd last said.
func (e *cluster) openCopy() error {
	copied, problems, err := store.OpenCopy(e.cfg.Copy, rand.Text(), func(err error) {
		e.cfg.Log.Warn("the copy of the store cannot be written: after a restart without the store the daemon has an older one", "file", e.cfg.Copy, "error", err)
	})
	if err != nil {
		return fmt.Errorf("the copy of the store: %w", err)
	}
	for _, p := range problems {
		e.cfg.Log.Warn("an entry of the store's copy is left out", "file", e.cfg.Copy, "why", p)
	}
	e.copy = copied
	return nil
}

// name is the store's name in messages.
func (e *cluster) name() string { return Scheme + strings.Join(e.cfg.Endpoints, ",") }

// key is the key in etcd of an entry.
func (e *cluster) key(key string) string { return e.cfg.Prefix + key }

// ask returns the context of one request.
func (e *cluster) ask() (context.Context, context.CancelFunc) {
	return context.WithTimeout(e.ctx, askTime)
}

// heard records the time of an answer.
func (e *cluster) heard() { e.copy.Hear(time.Now()) }

// sleep waits, and reports whether the store is still open.
func (e *cluster) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-e.ctx.Done():
		return false
	}
}

// same returns an *errStrange if value, of the entry meta, names another store than the copy's.
func (e *cluster) same(value []byte) error {
	known := e.copy.Get(store.KeyMeta)
	if value == nil {
		if known.Revision != 0 {
			return strange("the store has lost its contents: the entry %s is gone. %s", store.KeyMeta, e.advice())
		}
		return nil
	}
	var was, is store.Meta
	if err := json.Unmarshal(value, &is); err != nil || is.ID == "" {
		return strange("the entry %s of the store does not say which store it is: %.80q", store.KeyMeta, value)
	}
	if is.Schema > store.Schema {
		return strange("the store has schema %d, this version reads %d: use a newer vrdma", is.Schema, store.Schema)
	}
	if known.Revision == 0 || json.Unmarshal(known.Value, &was) != nil || was.ID == "" {
		return nil // it was not known before
	}
	if is.ID != was.ID {
		return strange("the store is another one: it was %.40q and is %.40q. %s", was.ID, is.ID, e.advice())
	}
	return nil
}

// advice tells the operator what to do about another store.
func (e *cluster) advice() string {
	if e.cfg.Copy == "" {
		return "If that is meant, restart the daemon"
	}
	return fmt.Sprintf("What runs goes on, and vrdma store export still prints what was declared. If the new contents are meant, stop the daemon, delete %s and start it again", e.cfg.Copy)
}

// operations converts writes to operations of a transaction.
func (e *cluster) operations(writes []store.Write) (ops []clientv3.Op) {
	for _, w := range writes {
		if w.Delete {
			ops = append(ops, clientv3.OpDelete(e.key(w.Key)))
		} else {
			ops = append(ops, clientv3.OpPut(e.key(w.Key), string(w.Value)))
		}
	}
	return ops
}

// away makes an error of a request readable.
func (e *cluster) away(err error) error {
	if e.ctx.Err() != nil {
		return store.ErrClosed
	}
	return fmt.Errorf("the store %s: %w; last heard of %s", e.name(), err, e.copy.Heard().Format(time.RFC3339))
}

// entry converts a key of etcd's to an entry. The error is for a key that cannot be one.
func (e *cluster) entry(kv *mvccpb.KeyValue) (store.Entry, error) {
	out := store.Entry{Key: strings.TrimPrefix(string(kv.Key), e.cfg.Prefix), Value: kv.Value, Revision: kv.ModRevision}
	if out.Value == nil {
		out.Value = []byte{}
	}
	if err := store.Check(nil, []store.Write{{Key: out.Key, Value: out.Value}}); err != nil {
		return out, fmt.Errorf("%.80q is not an entry of the store: %w", kv.Key, err)
	}
	return out, nil
}
