package stream

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
)

// This file has the messages of the rsockets protocol, version 1, as in librdmacm's rsocket.c.

// Operations are the upper three bits of an immediate value; the other bits are the argument.
const (
	opData    = 0 // data; the argument is the number of bytes
	opSGL     = 4 // credit: total number of messages allowed so far, modulo 2^16
	opControl = 7

	opShift = 29
	opMask  = 1<<opShift - 1

	controlDisconnect = 0 // the sender neither sends nor receives any more
	controlKeepalive  = 1
	controlShutdown   = 2 // the sender sends no more data
)

func message(op, arg uint32) uint32 { return op<<opShift | arg&opMask }

const (
	helloSize    = 40
	helloVersion = 1
	// flagNet means that the sender's table entries are in network byte order.
	flagNet = 1

	// sgls is the number of entries of the table in which the peer offers areas.
	sgls    = 2
	sglSize = 16
)

// An area is a part of the peer's memory: struct rs_sge.
type area struct {
	addr   uint64
	key    uint32
	length uint32
}

// hello is struct rs_conn_data, the private data of both sides in the handshake.
type hello struct {
	flags   uint8
	credits uint16 // number of messages that the peer may send
	table   area   // the table in which the peer writes areas; length is the number of entries
	data    area   // the first area into which the peer may write
}

func (h *hello) append(b []byte) []byte {
	b = append(b, helloVersion, h.flags)
	b = binary.BigEndian.AppendUint16(b, h.credits)
	b = append(b, 0, 0, 0, 0) // reserved; no iomap
	for _, a := range []area{h.table, h.data} {
		b = binary.BigEndian.AppendUint64(b, a.addr)
		b = binary.BigEndian.AppendUint32(b, a.key)
		b = binary.BigEndian.AppendUint32(b, a.length)
	}
	return b
}

var errHello = errors.New("the peer does not speak rsockets' protocol")

func (h *hello) parse(b []byte) error {
	if len(b) < helloSize {
		return fmt.Errorf("%w: its greeting has %d bytes", errHello, len(b))
	}
	if b[0] != helloVersion {
		return fmt.Errorf("%w: its version is %d", errHello, b[0])
	}
	h.flags, h.credits = b[1], binary.BigEndian.Uint16(b[2:])
	for i, a := range []*area{&h.table, &h.data} {
		at := b[8+16*i:]
		*a = area{binary.BigEndian.Uint64(at), binary.BigEndian.Uint32(at[8:]), binary.BigEndian.Uint32(at[12:])}
	}
	if h.table.length == 0 || h.table.length > 1<<16 {
		return fmt.Errorf("%w: it has %d areas", errHello, h.table.length)
	}
	return nil
}

// swapped returns an entry in the opposite byte order.
func (a area) swapped() area { return area{rev64(a.addr), rev32(a.key), rev32(a.length)} }

func (a area) put(b []byte) {
	binary.NativeEndian.PutUint64(b, a.addr)
	binary.NativeEndian.PutUint32(b[8:], a.key)
	binary.NativeEndian.PutUint32(b[12:], a.length)
}

func getArea(b []byte) area {
	return area{binary.NativeEndian.Uint64(b), binary.NativeEndian.Uint32(b[8:]), binary.NativeEndian.Uint32(b[12:])}
}

func rev32(v uint32) uint32 { return bits.ReverseBytes32(v) }
func rev64(v uint64) uint64 { return bits.ReverseBytes64(v) }

// bigEndian reports whether the byte order of this machine is big endian.
func bigEndian() bool { return binary.NativeEndian.Uint16([]byte{0, 1}) == 1 }
