package store

import (
	"context"
	"errors"
)

// A Client talks to a server. Only one goroutine may use it at a time. After an error that is not an answer of the server (ErrNoKey,
// ErrTooLong, ErrBad) it can only be closed.
type Client interface {
	// Get reads the value of a key into dst, which must be large enough, and returns its length and version.
	Get(ctx context.Context, key uint64, dst []byte) (n int, version uint64, err error)
	// Put sets the value of a key and returns the new version.
	Put(ctx context.Context, key uint64, value []byte) (version uint64, err error)
	// Stats returns the statistics of the server.
	Stats(ctx context.Context) (Stats, error)
	Close() error
}

// A caller sends a request, whose value is in place, and waits for its reply.
type caller interface {
	// room returns the buffer of the request; its value begins at headSize.
	room() message
	call(ctx context.Context, length int) (message, error)
}

var errShort = errors.New("the value does not fit into the buffer")

// get, put and stats are the same over RDMA and TCP.
func get(ctx context.Context, c caller, key uint64, dst []byte) (int, uint64, error) {
	c.room().setHead(opGet, 0, key, 0, 0)
	m, err := c.call(ctx, headSize)
	if err != nil {
		return 0, 0, err
	}
	if m.length() > len(dst) {
		return 0, 0, errShort
	}
	return copy(dst, m.value()), m.version(), nil
}

func put(ctx context.Context, c caller, key uint64, value []byte) (uint64, error) {
	r := c.room()
	if len(value) > len(r)-headSize {
		return 0, ErrTooLong
	}
	r.setHead(opPut, 0, key, 0, len(value))
	copy(r[headSize:], value)
	m, err := c.call(ctx, headSize+len(value))
	if err != nil {
		return 0, err
	}
	return m.version(), nil
}

func stats(ctx context.Context, c caller) (Stats, error) {
	c.room().setHead(opStats, 0, 0, 0, 0)
	m, err := c.call(ctx, headSize)
	if err != nil {
		return Stats{}, err
	}
	return parseStats(m.value())
}
