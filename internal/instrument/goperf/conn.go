package goperf

import (
	"context"
	"io"
	"net"
	"time"

	"vrdma.dev/vrdma/verbs/stream"
)

// onConn makes a test of a function that uses a net.Conn.
func onConn(measure func(*Config, net.Conn) (Result, error)) test {
	return func(ctx context.Context, c *Config) (Result, error) {
		conn, err := c.open(ctx)
		if err != nil {
			return Result{}, err
		}
		defer conn.Close()
		r, err := measure(c, conn)
		if err == nil && c.Server {
			_, err = conn.Read(make([]byte, 1)) // the client has measured
			if err == io.EOF {
				err = nil
			}
		}
		return r, err
	}
}

// open returns a connection over RDMA or TCP.
func (c *Config) open(ctx context.Context) (net.Conn, error) {
	listen := func() (net.Listener, error) { return net.Listen("tcp", c.Addr) }
	dial := func() (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "tcp", c.Addr) }
	if !c.TCP {
		p, err := stream.Open(ctx, c.Device, stream.Config{Buffer: c.Buffer})
		if err != nil {
			return nil, err
		}
		listen = func() (net.Listener, error) { return p.Listen(c.Addr) }
		dial = func() (net.Conn, error) { return p.Dial(ctx, c.Addr) }
	}
	if !c.Server {
		return dial()
	}
	l, err := listen()
	if err != nil {
		return nil, err
	}
	defer l.Close()
	return l.Accept()
}

// echo sends a message and waits for its echo.
func echo(c *Config, conn net.Conn) (Result, error) {
	b := make([]byte, c.Size)
	stamps := make([]time.Time, 0, c.Count)
	for range c.Count {
		if c.Server {
			if _, err := io.ReadFull(conn, b); err != nil {
				return Result{}, err
			}
		}
		stamps = append(stamps, time.Now())
		if _, err := conn.Write(b); err != nil {
			return Result{}, err
		}
		if !c.Server {
			if _, err := io.ReadFull(conn, b); err != nil {
				return Result{}, err
			}
		}
	}
	return latency(stamps), nil
}

// bulk writes messages. The peer answers when it has read all.
func bulk(c *Config, conn net.Conn) (Result, error) {
	b := make([]byte, c.Size)
	if c.Server {
		for left := c.Size * c.Count; left > 0; {
			n, err := conn.Read(b)
			if err != nil {
				return Result{}, err
			}
			left -= n
		}
		_, err := conn.Write(b[:1])
		return Result{}, err
	}
	start := time.Now()
	for range c.Count {
		if _, err := conn.Write(b); err != nil {
			return Result{}, err
		}
	}
	if _, err := io.ReadFull(conn, b[:1]); err != nil {
		return Result{}, err
	}
	return c.rate(time.Since(start)), nil
}
