package filecopy

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// protocolVersion changes when the messages do.
const protocolVersion = 1

const (
	// maxMessage is the longest message. A path has at most maxPath bytes.
	maxMessage = 8192
	maxPath    = 4095
	maxText    = 2048
	// sumsInMessage is how many sums of blocks a message have carries.
	sumsInMessage = 960
)

// A message is one of the control protocol. Its fields are named once, in fields, for writing and for
// reading.
type message interface {
	kind() byte
	fields(*coder)
}

// A coder writes or reads the fields of a message. Numbers are little endian. After an error it does
// nothing.
type coder struct {
	b       []byte // written so far, or left to read
	reading bool
	err     error
}

var errShort = errors.New("the message is too short")

// take is the next n bytes to read, or to be written to.
func (c *coder) take(n int) []byte {
	if c.err != nil {
		return nil
	}
	if !c.reading {
		c.b = append(c.b, make([]byte, n)...)
		return c.b[len(c.b)-n:]
	}
	if len(c.b) < n {
		c.err = errShort
		return nil
	}
	v := c.b[:n]
	c.b = c.b[n:]
	return v
}

func (c *coder) number8(v *uint8) {
	if b := c.take(1); b != nil {
		if c.reading {
			*v = b[0]
		} else {
			b[0] = *v
		}
	}
}

func (c *coder) number32(v *uint32) {
	if b := c.take(4); b != nil {
		if c.reading {
			*v = binary.LittleEndian.Uint32(b)
		} else {
			binary.LittleEndian.PutUint32(b, *v)
		}
	}
}

func (c *coder) number64(v *uint64) {
	if b := c.take(8); b != nil {
		if c.reading {
			*v = binary.LittleEndian.Uint64(b)
		} else {
			binary.LittleEndian.PutUint64(b, *v)
		}
	}
}

func (c *coder) truth(v *bool) {
	var n uint8
	if *v {
		n = 1
	}
	if c.number8(&n); n > 1 {
		c.err = fmt.Errorf("a truth value of %d", n)
	}
	*v = n == 1
}

func (c *coder) fixed(v []byte) {
	if b := c.take(len(v)); b != nil {
		if c.reading {
			copy(v, b)
		} else {
			copy(b, v)
		}
	}
}

// text is a string of at most most bytes. Writing cuts what is longer: only explanations are.
func (c *coder) text(v *string, most int) {
	n := uint32(min(len(*v), most))
	if c.number32(&n); c.err == nil && n > uint32(most) {
		c.err = fmt.Errorf("a text of %d bytes, where %d fit", n, most)
		return
	}
	if b := c.take(int(n)); b != nil {
		if c.reading {
			*v = string(b)
		} else {
			copy(b, *v)
		}
	}
}

func (c *coder) sums(v *[]uint64) {
	n := uint32(len(*v))
	if c.number32(&n); c.err == nil && n > sumsInMessage {
		c.err = fmt.Errorf("%d sums in one message, where %d fit", n, sumsInMessage)
		return
	}
	if c.reading && c.err == nil {
		*v = make([]uint64, n)
	}
	for i := range *v {
		c.number64(&(*v)[i])
	}
}

// Numbers of the messages.
const (
	kindChallenge = iota + 1
	kindAnswer
	kindWelcome
	kindRefusal
	kindRequest
	kindWant
	kindGranted
	kindWindow
	kindFile
	kindDirectory
	kindLink
	kindHave
	kindAccept
	kindSkip
	kindEnd
	kindDone
	kindFailed
	kindFinish
	kindFinished
	kindAlive
)

// A challenge is the server's first message on every connection.
type challenge struct {
	Version uint8
	Public  bool // no key is needed
	Nonce   [nonceSize]byte
}

// An answer is the client's: it proves that it knows the key, and says what the connection is for.
type answer struct {
	Version uint8
	Stream  uint8 // 0: a control connection; otherwise a stream of Session
	Session [sessionSize]byte
	Nonce   [nonceSize]byte
	Proof   [proofSize]byte
}

// welcome proves that the server knows the key, too.
type welcome struct{ Proof [proofSize]byte }

// A refusal ends a connection and says why.
type refusal struct{ Text string }

// A request says what a session is for.
type request struct {
	Put       bool // the client sends
	Recursive bool
	Preserve  bool
	Overwrite bool
	Into      bool // Put: Path is a directory
	Exact     bool // Put: Path is the name itself, also if there is a directory by now
	Streams   uint8
	Slots     uint8
	Copy      [sessionSize]byte // the same for every attempt of one command
	Path      string            // Put: where the files go
}

// want names a file or directory that the client asks for. After the last comes finish.
type want struct{ Path string }

// granted is the answer to a request: the client makes the streams.
type granted struct {
	Session [sessionSize]byte
	Streams uint8
	Exact   bool // what to ask for when trying again
}

// A window is the receiver's memory of one stream, in slots.
type window struct {
	Addr  uint64
	RKey  uint32
	Slots uint32
}

// meta is what the sender tells of an entry.
type meta struct {
	ID    uint32
	Path  string // relative, with slashes; begins with the name of what was asked for
	Mode  uint32 // permissions
	MTime uint64 // nanoseconds since 1970, as int64
}

type (
	file struct {
		meta
		Size   uint64
		Sparse bool
	}
	directory struct{ meta }
	link      struct {
		meta
		Target string
	}
)

// have tells sums of blocks that the receiver has from an earlier attempt; 0: it has not.
type have struct {
	ID    uint32
	First uint64
	Sums  []uint64
}

// accept lets the sender begin with a file; skip says that it is not needed.
type (
	accept struct{ ID uint32 }
	skip   struct{ ID uint32 }
)

// end tells that all of a file was sent, how much that was, and the sum of all sums.
type end struct {
	ID     uint32
	Sent   uint64
	Digest [digestSize]byte
}

// done and failed are the ends of an entry. The sender says failed, too, when it cannot go on with one;
// with ID 0 it is about something that it did not even offer.
type (
	done   struct{ ID uint32 }
	failed struct {
		ID   uint32
		Text string
	}
)

type (
	finish   struct{} // there is nothing more
	finished struct{} // all of it is done
	alive    struct{} // nothing new; the sender of this is there
)

func (m *challenge) kind() byte { return kindChallenge }
func (m *answer) kind() byte    { return kindAnswer }
func (m *welcome) kind() byte   { return kindWelcome }
func (m *refusal) kind() byte   { return kindRefusal }
func (m *request) kind() byte   { return kindRequest }
func (m *want) kind() byte      { return kindWant }
func (m *granted) kind() byte   { return kindGranted }
func (m *window) kind() byte    { return kindWindow }
func (m *file) kind() byte      { return kindFile }
func (m *directory) kind() byte { return kindDirectory }
func (m *link) kind() byte      { return kindLink }
func (m *have) kind() byte      { return kindHave }
func (m *accept) kind() byte    { return kindAccept }
func (m *skip) kind() byte      { return kindSkip }
func (m *end) kind() byte       { return kindEnd }
func (m *done) kind() byte      { return kindDone }
func (m *failed) kind() byte    { return kindFailed }
func (m *finish) kind() byte    { return kindFinish }
func (m *finished) kind() byte  { return kindFinished }
func (m *alive) kind() byte     { return kindAlive }

func (m *challenge) fields(c *coder) { c.number8(&m.Version); c.truth(&m.Public); c.fixed(m.Nonce[:]) }
func (m *answer) fields(c *coder) {
	c.number8(&m.Version)
	c.number8(&m.Stream)
	c.fixed(m.Session[:])
	c.fixed(m.Nonce[:])
	c.fixed(m.Proof[:])
}
func (m *welcome) fields(c *coder) { c.fixed(m.Proof[:]) }
func (m *refusal) fields(c *coder) { c.text(&m.Text, maxText) }
func (m *request) fields(c *coder) {
	for _, v := range []*bool{&m.Put, &m.Recursive, &m.Preserve, &m.Overwrite, &m.Into, &m.Exact} {
		c.truth(v)
	}
	c.number8(&m.Streams)
	c.number8(&m.Slots)
	c.fixed(m.Copy[:])
	c.text(&m.Path, maxPath)
}
func (m *want) fields(c *coder) { c.text(&m.Path, maxPath) }
func (m *granted) fields(c *coder) {
	c.fixed(m.Session[:])
	c.number8(&m.Streams)
	c.truth(&m.Exact)
}
func (m *window) fields(c *coder) { c.number64(&m.Addr); c.number32(&m.RKey); c.number32(&m.Slots) }
func (m *meta) fields(c *coder) {
	c.number32(&m.ID)
	c.text(&m.Path, maxPath)
	c.number32(&m.Mode)
	c.number64(&m.MTime)
}
func (m *file) fields(c *coder)   { m.meta.fields(c); c.number64(&m.Size); c.truth(&m.Sparse) }
func (m *link) fields(c *coder)   { m.meta.fields(c); c.text(&m.Target, maxText) }
func (m *have) fields(c *coder)   { c.number32(&m.ID); c.number64(&m.First); c.sums(&m.Sums) }
func (m *accept) fields(c *coder) { c.number32(&m.ID) }
func (m *skip) fields(c *coder)   { c.number32(&m.ID) }
func (m *end) fields(c *coder)    { c.number32(&m.ID); c.number64(&m.Sent); c.fixed(m.Digest[:]) }
func (m *done) fields(c *coder)   { c.number32(&m.ID) }
func (m *failed) fields(c *coder) { c.number32(&m.ID); c.text(&m.Text, maxText) }
func (m *finish) fields(*coder)   {}
func (m *finished) fields(*coder) {}
func (m *alive) fields(*coder)    {}

// blank is an empty message of each kind.
var blank = map[byte]func() message{
	kindChallenge: func() message { return &challenge{} },
	kindAnswer:    func() message { return &answer{} },
	kindWelcome:   func() message { return &welcome{} },
	kindRefusal:   func() message { return &refusal{} },
	kindRequest:   func() message { return &request{} },
	kindWant:      func() message { return &want{} },
	kindGranted:   func() message { return &granted{} },
	kindWindow:    func() message { return &window{} },
	kindFile:      func() message { return &file{} },
	kindDirectory: func() message { return &directory{} },
	kindLink:      func() message { return &link{} },
	kindHave:      func() message { return &have{} },
	kindAccept:    func() message { return &accept{} },
	kindSkip:      func() message { return &skip{} },
	kindEnd:       func() message { return &end{} },
	kindDone:      func() message { return &done{} },
	kindFailed:    func() message { return &failed{} },
	kindFinish:    func() message { return &finish{} },
	kindFinished:  func() message { return &finished{} },
	kindAlive:     func() message { return &alive{} },
}

// encode is a message as bytes, behind what b has.
func encode(b []byte, m message) []byte {
	c := coder{b: append(b, m.kind())}
	m.fields(&c)
	return c.b
}

// decode reads a message. It does not keep b.
func decode(b []byte) (message, error) {
	if len(b) == 0 {
		return nil, violation("an empty message")
	}
	make, known := blank[b[0]]
	if !known {
		return nil, violation("a message of unknown kind %d", b[0])
	}
	m := make()
	c := coder{b: b[1:], reading: true}
	if m.fields(&c); c.err == nil && len(c.b) > 0 {
		c.err = fmt.Errorf("%d bytes too many", len(c.b))
	}
	if c.err != nil {
		return nil, violation("a message of kind %d: %w", b[0], c.err)
	}
	return m, nil
}

// A ViolationError is a peer that does not keep to the protocol.
type ViolationError struct{ err error }

func (e *ViolationError) Error() string {
	return "the peer broke the protocol: it sent " + e.err.Error()
}
func (e *ViolationError) Unwrap() error { return e.err }

func violation(format string, args ...any) error {
	return &ViolationError{fmt.Errorf(format, args...)}
}
