package netlink

import (
	"encoding/binary"
	"syscall"
)

var order = binary.NativeEndian

// maxDatagram is the maximum length of an answer. libmnl reads into one page, and the kernel's dumps stay below that.
const maxDatagram = 3584

// A request is one message of a program.
type request struct {
	kind, flags uint16
	seq, pid    uint32
	header      []byte
	attrs       map[uint16][]byte
}

func (r *request) client() uint16  { return r.kind >> 10 & 0x3f }
func (r *request) command() uint16 { return r.kind & 0x3ff }

// next splits a message off a datagram. It returns false if there is no complete message.
func next(b []byte) (r request, body, rest []byte, ok bool) {
	if len(b) < headerSize {
		return r, nil, nil, false
	}
	n := order.Uint32(b)
	if n < headerSize || uint64(n) > uint64(len(b)) {
		return r, nil, nil, false
	}
	r = request{
		kind: order.Uint16(b[4:]), flags: order.Uint16(b[6:]), seq: order.Uint32(b[8:]), pid: order.Uint32(b[12:]),
		header: b[:headerSize],
	}
	return r, b[headerSize:n], b[min(align(int(n)), len(b)):], true
}

// parse decodes attributes. As in the kernel, the last of a type counts, and a tail that is too short is ignored.
func (r *request) parse(b []byte) error {
	r.attrs = map[uint16][]byte{}
	for len(b) >= attrHeader {
		n := int(order.Uint16(b))
		if n < attrHeader || n > len(b) {
			return syscall.EINVAL
		}
		r.attrs[order.Uint16(b[2:])&attrTypeMask] = b[attrHeader:n]
		b = b[min(align(n), len(b)):]
	}
	return nil
}

// u32 returns an attribute that is a number.
func (r *request) u32(attr uint16) (uint32, bool) {
	b := r.attrs[attr]
	if len(b) < 4 {
		return 0, false
	}
	return order.Uint32(b), true
}

// text returns an attribute that is a string.
func (r *request) text(attr uint16) (string, bool) {
	b, ok := r.attrs[attr]
	for i, c := range b {
		if c == 0 {
			return string(b[:i]), true
		}
	}
	return string(b), ok
}

func align(n int) int { return (n + 3) &^ 3 }

// A message is a message of an answer under construction.
type message struct{ b []byte }

// begin starts a message that answers r.
func (m *message) begin(r *request, kind, flags uint16) {
	m.b = order.AppendUint32(m.b[:0], 0) // the length, set by end
	m.b = order.AppendUint16(m.b, kind)
	m.b = order.AppendUint16(m.b, flags)
	m.b = order.AppendUint32(m.b, r.seq)
	m.b = order.AppendUint32(m.b, r.pid)
}

// end sets the length.
func (m *message) end() []byte {
	order.PutUint32(m.b, uint32(len(m.b)))
	return m.b
}

func (m *message) attr(kind uint16, n int) {
	m.b = order.AppendUint16(m.b, uint16(attrHeader+n))
	m.b = order.AppendUint16(m.b, kind)
}

func (m *message) pad() {
	for len(m.b)&3 != 0 {
		m.b = append(m.b, 0)
	}
}

func (m *message) u8(kind uint16, v uint8) {
	m.attr(kind, 1)
	m.b = append(m.b, v)
	m.pad()
}

func (m *message) u32(kind uint16, v uint32) {
	m.attr(kind, 4)
	m.b = order.AppendUint32(m.b, v)
}

func (m *message) u64(kind uint16, v uint64) {
	m.attr(kind, 8)
	m.b = order.AppendUint64(m.b, v)
}

func (m *message) text(kind uint16, s string) {
	m.attr(kind, len(s)+1)
	m.b = append(append(m.b, s...), 0)
	m.pad()
}

func (m *message) bytes(kind uint16, b []byte) {
	m.attr(kind, len(b))
	m.b = append(m.b, b...)
	m.pad()
}

// nest starts a nested attribute, close ends it.
func (m *message) nest(kind uint16) (mark int) {
	mark = len(m.b)
	m.attr(kind, 0)
	return mark
}

func (m *message) close(mark int) { order.PutUint16(m.b[mark:], uint16(len(m.b)-mark)) }
