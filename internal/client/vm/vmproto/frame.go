package vmproto

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Version is the version of this protocol. Agent and daemon must have the same.
const Version = 1

// A Kind is the kind of a frame; the package comment has the table.
type Kind uint16

// Kinds of frame.
const (
	Hello Kind = 1 + iota
	Welcome
	Open
	Arena
	Grow
	Grown
	Pin
	Unpin
	Message
	Bell
	Handle
	Event
	Raise
	Lower
	Drop
	Recall
	Returned
	File
	Close
	lastKind
)

// A Frame has a kind, the number of its conversation, handle or pin, and a body.
type Frame struct {
	Kind Kind
	ID   uint32
	Body []byte
}

const (
	headerSize = 12
	mark       = 0x7672 // in every header
	// MaxBody is the maximum length of a body: a message of package protocol, and a little more.
	MaxBody = 68 << 10
)

var le = binary.LittleEndian

// ErrMalformed is returned, wrapped, for data that is not a frame.
var ErrMalformed = errors.New("malformed frame")

// Append appends a frame.
func Append(b []byte, k Kind, id uint32, body ...[]byte) []byte {
	n := 0
	for _, p := range body {
		n += len(p)
	}
	b = le.AppendUint16(b, mark)
	b = le.AppendUint16(b, uint16(k))
	b = le.AppendUint32(b, id)
	b = le.AppendUint32(b, uint32(n))
	for _, p := range body {
		b = append(b, p...)
	}
	return b
}

// A Reader reads frames.
type Reader struct {
	r    *bufio.Reader
	body []byte
}

// NewReader returns a Reader of frames from r.
func NewReader(r io.Reader) *Reader { return &Reader{r: bufio.NewReaderSize(r, 64<<10)} }

// Next reads a frame. Its body is valid until the next call.
func (r *Reader) Next() (Frame, error) {
	var h [headerSize]byte
	if _, err := io.ReadFull(r.r, h[:]); err != nil {
		return Frame{}, err
	}
	f := Frame{Kind: Kind(le.Uint16(h[2:])), ID: le.Uint32(h[4:])}
	n := le.Uint32(h[8:])
	if le.Uint16(h[:]) != mark || f.Kind == 0 || f.Kind >= lastKind || n > MaxBody {
		return Frame{}, fmt.Errorf("%w: header %x", ErrMalformed, h)
	}
	if cap(r.body) < int(n) {
		r.body = make([]byte, n)
	}
	f.Body = r.body[:n]
	_, err := io.ReadFull(r.r, f.Body)
	return f, err
}

// Find reads up to magic, whatever precedes it, and returns the n bytes after it.
func (r *Reader) Find(magic []byte, n int) ([]byte, error) {
	var last []byte
	for !bytes.Equal(last, magic) {
		c, err := r.r.ReadByte()
		if err != nil {
			return nil, err
		}
		if last = append(last, c); len(last) > len(magic) {
			last = last[1:]
		}
	}
	b := make([]byte, n)
	_, err := io.ReadFull(r.r, b)
	return b, err
}
