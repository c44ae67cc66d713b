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

// A Reader reads frames. After an error of its source, such as a deadline, it continues where it was.
type Reader struct {
	r    *bufio.Reader
	used int // bytes that the last call has returned, and the next call discards
}

// readerSize is more than a frame.
const readerSize = 128 << 10

// NewReader returns a Reader of frames from r.
func NewReader(r io.Reader) *Reader { return &Reader{r: bufio.NewReaderSize(r, readerSize)} }

// NewReaderOf returns a Reader that continues after another one, of which it has the Unread bytes.
func NewReaderOf(r io.Reader, unread []byte) *Reader {
	n := NewReader(io.MultiReader(bytes.NewReader(unread), r))
	n.r.Peek(min(len(unread), readerSize)) // Unread returns them from now on
	return n
}

// Unread returns the bytes that were read from the source and do not belong to a frame that Next has returned. They are valid until
// the next call.
func (r *Reader) Unread() []byte {
	b, _ := r.r.Peek(r.r.Buffered())
	return b[r.used:]
}

// discard discards what the last call has returned.
func (r *Reader) discard() {
	r.r.Discard(r.used)
	r.used = 0
}

// Next reads a frame. Its body is valid until the next call.
func (r *Reader) Next() (Frame, error) {
	r.discard()
	h, err := r.r.Peek(headerSize)
	if err == io.EOF && len(h) > 0 {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return Frame{}, err
	}
	f := Frame{Kind: Kind(le.Uint16(h[2:])), ID: le.Uint32(h[4:])}
	n := le.Uint32(h[8:])
	if le.Uint16(h) != mark || f.Kind == 0 || f.Kind >= lastKind || n > MaxBody {
		return Frame{}, fmt.Errorf("%w: header %x", ErrMalformed, h)
	}
	b, err := r.r.Peek(headerSize + int(n))
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return Frame{}, err
	}
	r.used = len(b)
	f.Body = b[headerSize:]
	return f, nil
}

// Find reads up to magic, whatever precedes it, and returns the n bytes after it. They are valid until the next call.
func (r *Reader) Find(magic []byte, n int) ([]byte, error) {
	r.discard()
	for {
		b, err := r.r.Peek(len(magic))
		if err != nil {
			return nil, err
		}
		if bytes.Equal(b, magic) {
			break
		}
		r.r.Discard(1)
	}
	b, err := r.r.Peek(len(magic) + n)
	if err != nil {
		return nil, err
	}
	r.used = len(b)
	return b[len(magic):], nil
}
