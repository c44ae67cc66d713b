package filecopy

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ProtocolVersion changes with the messages.
const ProtocolVersion = 1

const (
	// maxMessage is the longest message. A path has at most maxPath bytes.
	maxMessage = 8192
	maxPath    = 4095
	maxText    = 2048
	// sumsInMessage is how many checksums a message have carries.
	sumsInMessage = 960
)

// A message is a message of the control protocol. The method fields lists its fields once, for encoding and decoding.
type message interface {
	kind() byte
	fields(*coder)
}

// A coder encodes or decodes the fields of a message. Numbers are little endian. After an error it does nothing.
type coder struct {
	b       []byte // encoded so far, or left to decode
	reading bool
	err     error
}

var errShort = errors.New("the message is too short")

// take returns the next n bytes to decode, or to encode into.
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

// text is a string of at most this many bytes. Encoding truncates longer ones, which are only explanations.
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

// Types of messages.
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

// An answer proves that the client knows the key, and says what the connection is for.
type answer struct {
	Version uint8
	Stream  uint8 // 0: a control connection; otherwise a stream of Session
	Session [sessionSize]byte
	Nonce   [nonceSize]byte
	Proof   [proofSize]byte
}

// welcome proves that the server knows the key.
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
	Exact     bool // Put: Path is the name itself, even if a directory exists by now
	Streams   uint8
	Slots     uint8
	Copy      [sessionSize]byte // the same for every attempt of one command
	Path      string            // Put: where the files go
}

// want names a file or directory that the client requests. After the last comes finish.
type want struct{ Path string }

// granted answers a request. The client then makes the streams.
type granted struct {
	Session [sessionSize]byte
	Streams uint8
	Exact   bool // for the request of the next attempt
}

// A window is the receiver's memory of one stream, in slots.
type window struct {
	Addr  uint64
	RKey  uint32
	Slots uint32
}

// meta describes an entry.
type meta struct {
	ID    uint32
	Path  string // relative, with slashes; begins with the name of the requested entry
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

// have has the checksums of blocks that the receiver has from an earlier attempt; 0: missing.
type have struct {
	ID    uint32
	First uint64
	Sums  []uint64
}

// accept lets the sender start a file; skip says that it is not needed.
type (
	accept struct{ ID uint32 }
	skip   struct{ ID uint32 }
)

// end says that a file was sent completely, how large it is, and the checksum of all checksums.
type end struct {
	ID     uint32
	Sent   uint64
	Digest [digestSize]byte
}

// done and failed end an entry. The sender also sends failed when it cannot continue one; ID 0 is an entry that it did not offer.
type (
	done   struct{ ID uint32 }
	failed struct {
		ID   uint32
		Text string
	}
)

type (
	finish   struct{} // the last entry was sent
	finished struct{} // all entries are done
	alive    struct{} // a keepalive
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

// blank makes an empty message of each type.
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

// encode appends the encoded message to b.
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

// A ViolationError is a violation of the protocol by the peer.
type ViolationError struct{ err error }

func (e *ViolationError) Error() string {
	return "the peer broke the protocol: it sent " + e.err.Error()
}
func (e *ViolationError) Unwrap() error { return e.err }

func violation(format string, args ...any) error {
	return &ViolationError{fmt.Errorf(format, args...)}
}
