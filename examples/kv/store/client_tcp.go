package store

import (
	"bufio"
	"context"
	"net"
	"time"
)

// TCP is a client over TCP.
type TCP struct {
	conn net.Conn
	r    *bufio.Reader
	buf  []byte // for the request, then for its reply
}

// DialTCP connects to a server over TCP.
func DialTCP(ctx context.Context, addr string) (*TCP, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return &TCP{conn: conn, r: bufio.NewReader(conn), buf: make([]byte, headSize+MaxValue)}, nil
}

// Get implements Client.
func (c *TCP) Get(ctx context.Context, key uint64, dst []byte) (int, uint64, error) {
	return get(ctx, c, key, dst)
}

// Put implements Client.
func (c *TCP) Put(ctx context.Context, key uint64, value []byte) (uint64, error) {
	return put(ctx, c, key, value)
}

// Stats implements Client.
func (c *TCP) Stats(ctx context.Context) (Stats, error) { return stats(ctx, c) }

// Close implements Client.
func (c *TCP) Close() error { return c.conn.Close() }

func (c *TCP) room() message { return c.buf }

func (c *TCP) call(ctx context.Context, length int) (message, error) {
	stop := context.AfterFunc(ctx, func() { c.conn.SetDeadline(time.Unix(1, 0)) }) // in the past
	defer stop()
	if _, err := c.conn.Write(c.buf[:length]); err != nil {
		return nil, ended(ctx, err)
	}
	b, err := readMessage(c.r, c.buf)
	if err != nil {
		return nil, ended(ctx, err)
	}
	return b, message(b).err()
}

// ended returns why a call failed: the context's error, if it has ended.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}
