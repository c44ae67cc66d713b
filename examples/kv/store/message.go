package store

import (
	"errors"
	"fmt"
)

// Errors that a server returns.
var (
	ErrNoKey   = errors.New("no such key")
	ErrTooLong = errors.New("the value is too long")
	ErrBad     = errors.New("not a request")
)

// Operations of a request.
const (
	opGet = iota + 1
	opPut
	opStats
)

// Statuses of a reply.
const (
	statusOK = iota
	statusNoKey
	statusTooLong
	statusBad
)

// statusErrors are the errors of the statuses.
var statusErrors = [...]error{statusNoKey: ErrNoKey, statusTooLong: ErrTooLong, statusBad: ErrBad}

// headSize is the length of a message without its value.
const headSize = 24

// A message is a request or its reply, over RDMA and over TCP alike:
//
//	offset 0 op  1 status  4 length of the value  8 key  16 version  24 value
type message []byte

func (m message) op() byte        { return m[0] }
func (m message) status() byte    { return m[1] }
func (m message) length() int     { return int(order.Uint32(m[4:])) }
func (m message) key() uint64     { return order.Uint64(m[8:]) }
func (m message) version() uint64 { return order.Uint64(m[16:]) }
func (m message) value() []byte   { return m[headSize : headSize+m.length()] }

// setHead sets everything but the value.
func (m message) setHead(op, status byte, key, version uint64, length int) {
	m[0], m[1], m[2], m[3] = op, status, 0, 0
	order.PutUint32(m[4:], uint32(length))
	order.PutUint64(m[8:], key)
	order.PutUint64(m[16:], version)
}

// parse returns the message in a complete buffer.
func parse(b []byte) (message, error) {
	if len(b) < headSize {
		return nil, fmt.Errorf("%w: %d bytes", ErrBad, len(b))
	}
	m := message(b)
	if m.length() > len(b)-headSize || m.length() > MaxValue {
		return nil, fmt.Errorf("%w: it says %d bytes of value and has %d", ErrBad, m.length(), len(b)-headSize)
	}
	return m[:headSize+m.length()], nil
}

// err returns the error of a reply.
func (m message) err() error {
	switch s := m.status(); {
	case s == statusOK:
		return nil
	case int(s) < len(statusErrors):
		return fmt.Errorf("key %d: %w", m.key(), statusErrors[s])
	default:
		return fmt.Errorf("a reply of unknown status %d", s)
	}
}

// statusOf returns the status of an error.
func statusOf(err error) byte {
	for s, e := range statusErrors {
		if e != nil && errors.Is(err, e) {
			return byte(s)
		}
	}
	return statusBad
}

// A where is what a client needs to read the table. The server sends it when a connection is made.
type where struct {
	addr     uint64
	rkey     uint32
	keys     uint32
	maxValue uint32
}

const whereSize = 20

func (w where) encode() []byte {
	b := make([]byte, whereSize)
	order.PutUint64(b, w.addr)
	order.PutUint32(b[8:], w.rkey)
	order.PutUint32(b[12:], w.keys)
	order.PutUint32(b[16:], w.maxValue)
	return b
}

func parseWhere(b []byte) (w where, err error) {
	if len(b) < whereSize { // rdma_cm may add zeroes at the end
		return w, fmt.Errorf("the server said %d bytes about its table, not %d: is it a store?", len(b), whereSize)
	}
	w = where{order.Uint64(b), order.Uint32(b[8:]), order.Uint32(b[12:]), order.Uint32(b[16:])}
	if w.keys == 0 || w.maxValue > MaxValue {
		return w, fmt.Errorf("the server has a table of %d keys and values of %d bytes: is it a store?", w.keys, w.maxValue)
	}
	return w, nil
}

// Stats are the statistics of a server.
type Stats struct {
	Messages uint64 // gets and puts
	CPU      uint64 // processor time of its process in nanoseconds
	Daemon   uint64 // processor time of the vrdma daemon on its host in nanoseconds
}

const statsSize = 24

func (s Stats) encode(b []byte) int {
	order.PutUint64(b, s.Messages)
	order.PutUint64(b[8:], s.CPU)
	order.PutUint64(b[16:], s.Daemon)
	return statsSize
}

func parseStats(b []byte) (s Stats, err error) {
	if len(b) != statsSize {
		return s, fmt.Errorf("statistics of %d bytes, want %d", len(b), statsSize)
	}
	return Stats{order.Uint64(b), order.Uint64(b[8:]), order.Uint64(b[16:])}, nil
}
