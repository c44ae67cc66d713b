package vhostuser

import (
	"encoding/binary"
	"fmt"
)

var le = binary.LittleEndian

// headerSize is the size of the header of every message: request, flags, size of the payload.
const headerSize = 12

const (
	version     = 1
	versionMask = 3
	flagReply   = 1 << 2
	flagNeed    = 1 << 3 // the front end requests an acknowledgement (REPLY_ACK)
)

// maxPayload limits the payload; the largest is a memory table of maxRegions.
const maxPayload = 8 + maxRegions*regionSize

// maxRegions is the maximum number of regions in SET_MEM_TABLE, and so of descriptors in one message.
const maxRegions = 8

// Request is a request of a front end, with the protocol's numbers and names.
type Request uint32

const (
	getFeatures         Request = 1
	setFeatures         Request = 2
	setOwner            Request = 3
	resetOwner          Request = 4
	setMemTable         Request = 5
	setLogBase          Request = 6
	setLogFD            Request = 7
	setVringNum         Request = 8
	setVringAddr        Request = 9
	setVringBase        Request = 10
	getVringBase        Request = 11
	setVringKick        Request = 12
	setVringCall        Request = 13
	setVringErr         Request = 14
	getProtocolFeatures Request = 15
	setProtocolFeatures Request = 16
	getQueueNum         Request = 17
	setVringEnable      Request = 18
	sendRARP            Request = 19
	netSetMTU           Request = 20
	resetDevice         Request = 34
	getMaxMemSlots      Request = 36
	addMemReg           Request = 37
	remMemReg           Request = 38
)

// A form is the format of a request and its handler.
type form struct {
	name     string
	min, max int // bytes of payload
	fds      int // maximum number of descriptors
	do       func(*Conn, *message) (reply []byte, err error)
}

// forms are the supported requests. Any other request ends the connection: it belongs to a feature that was not offered.
var forms map[Request]form

func init() { // the handlers refer to forms, which a variable initializer must not do
	forms = map[Request]form{
		getFeatures:         {"GET_FEATURES", 0, 0, 0, (*Conn).getFeatures},
		setFeatures:         {"SET_FEATURES", 8, 8, 0, (*Conn).setFeatures},
		setOwner:            {"SET_OWNER", 0, 0, 0, nothing},
		resetOwner:          {"RESET_OWNER", 0, 0, 0, (*Conn).reset},
		resetDevice:         {"RESET_DEVICE", 0, 0, 0, (*Conn).reset},
		setMemTable:         {"SET_MEM_TABLE", 8, 8 + maxRegions*regionSize, maxRegions, (*Conn).setMemTable},
		setLogBase:          {"SET_LOG_BASE", 16, 16, 1, (*Conn).setLogBase},
		setLogFD:            {"SET_LOG_FD", 0, 8, 1, nothing},
		setVringNum:         {"SET_VRING_NUM", 8, 8, 0, (*Conn).setVringNum},
		setVringAddr:        {"SET_VRING_ADDR", 40, 40, 0, (*Conn).setVringAddr},
		setVringBase:        {"SET_VRING_BASE", 8, 8, 0, (*Conn).setVringBase},
		getVringBase:        {"GET_VRING_BASE", 8, 8, 0, (*Conn).getVringBase},
		setVringKick:        {"SET_VRING_KICK", 8, 8, 1, (*Conn).setVringKick},
		setVringCall:        {"SET_VRING_CALL", 8, 8, 1, (*Conn).setVringCall},
		setVringErr:         {"SET_VRING_ERR", 8, 8, 1, nothing},
		getProtocolFeatures: {"GET_PROTOCOL_FEATURES", 0, 0, 0, (*Conn).getProtocolFeatures},
		setProtocolFeatures: {"SET_PROTOCOL_FEATURES", 8, 8, 0, (*Conn).setProtocolFeatures},
		getQueueNum:         {"GET_QUEUE_NUM", 0, 0, 0, (*Conn).getQueueNum},
		setVringEnable:      {"SET_VRING_ENABLE", 8, 8, 0, (*Conn).setVringEnable},
		sendRARP:            {"SEND_RARP", 8, 8, 0, (*Conn).sendRARP},
		netSetMTU:           {"NET_SET_MTU", 8, 8, 0, (*Conn).netSetMTU},
		getMaxMemSlots:      {"GET_MAX_MEM_SLOTS", 0, 0, 0, (*Conn).getMaxMemSlots},
		addMemReg:           {"ADD_MEM_REG", 8 + regionSize, 8 + regionSize, 1, (*Conn).addMemReg},
		remMemReg:           {"REM_MEM_REG", 8 + regionSize, 8 + regionSize, 1, (*Conn).remMemReg},
	}
}

func (r Request) String() string {
	if f, ok := forms[r]; ok {
		return f.name
	}
	return fmt.Sprintf("request %d", uint32(r))
}

// A message is a request with its payload and descriptors. Descriptors that no handler takes are closed after it.
type message struct {
	request Request
	flags   uint32
	body    []byte
	fds     []int
}

// take transfers a descriptor to the caller; -1 if there is none.
func (m *message) take(i int) int {
	if i >= len(m.fds) {
		return -1
	}
	fd := m.fds[i]
	m.fds[i] = -1
	return fd
}

func (m *message) u64() uint64 { return le.Uint64(m.body) }

// parseHeader decodes a header and returns the size of the payload.
func parseHeader(b []byte) (m message, size int, err error) {
	m.request, m.flags = Request(le.Uint32(b)), le.Uint32(b[4:])
	n := le.Uint32(b[8:])
	f, ok := forms[m.request]
	switch {
	case m.flags&versionMask != version:
		return m, 0, fmt.Errorf("%v has version %d of the protocol: only %d is known", m.request, m.flags&versionMask, version)
	case m.flags&flagReply != 0:
		return m, 0, fmt.Errorf("%v came as a reply, and nothing was asked", m.request)
	case !ok:
		return m, 0, fmt.Errorf("%v is of no feature that was offered", m.request)
	case n < uint32(f.min) || n > uint32(f.max):
		return m, 0, fmt.Errorf("%v has %d bytes: it has %d to %d", m.request, n, f.min, f.max)
	}
	return m, int(n), nil
}

// putReply returns the reply to a request.
func putReply(r Request, body []byte) []byte {
	b := make([]byte, 0, headerSize+len(body))
	b = le.AppendUint32(b, uint32(r))
	b = le.AppendUint32(b, version|flagReply)
	b = le.AppendUint32(b, uint32(len(body)))
	return append(b, body...)
}
