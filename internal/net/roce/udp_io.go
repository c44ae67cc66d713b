package roce

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"
)

const (
	sendBatch = 64
	// controlRoom is the buffer for the control messages of one received message: segment length and type of
	// service, each a header of 16 bytes and up to 8 bytes of data.
	controlRoom = 64
	nameRoom    = unix.SizeofSockaddrInet6
	cmsgHeader  = unix.SizeofCmsghdr
	// segmentControl is a control message with the segment length.
	segmentControl = cmsgHeader + 8
)

// batchIO has the arguments of sendmmsg and recvmmsg.
type batchIO struct {
	hdrs    []mmsghdr
	iovs    []unix.Iovec
	names   [][nameRoom]byte
	control []byte
	room    int // bytes of control per message
}

func newBatchIO(n, control int) *batchIO {
	if control == 0 {
		control = segmentControl
	}
	b := &batchIO{
		hdrs: make([]mmsghdr, n), iovs: make([]unix.Iovec, n), names: make([][nameRoom]byte, n),
		control: make([]byte, n*control), room: control,
	}
	for i := range b.hdrs {
		h := &b.hdrs[i].hdr
		h.Name = &b.names[i][0]
		h.Iov = &b.iovs[i]
		h.SetIovlen(1)
		h.Control = &b.control[i*control]
	}
	return b
}

// A shard is what one loop needs of a UDP: it receives at sockets of its own, and sends from those that all have.
type shard struct {
	of     *UDP
	number int
	gso    bool
	next   int // endpoint to receive from next

	tx *batchIO
	rx *batchIO
}

func newShard(u *UDP, number int) *shard {
	return &shard{of: u, number: number, gso: u.gso, tx: newBatchIO(sendBatch, 0), rx: newBatchIO(batch, controlRoom)}
}

// Source implements Bind.
func (s *shard) Source(local netip.Addr, hash uint32) (int, netip.AddrPort, bool) {
	for i := range s.of.ends {
		if e := &s.of.ends[i]; e.addr == local {
			k := int(hash % poolSize)
			return i*poolSize + k, netip.AddrPortFrom(e.addr, e.port[k]), true
		}
	}
	return 0, netip.AddrPort{}, false
}

// Segments implements Bind.
func (s *shard) Segments() int {
	if s.gso {
		return MaxSegments
	}
	return 1
}

// Descriptors returns the sockets that become readable when datagrams arrive.
func (s *shard) Descriptors() []int {
	fds := make([]int, 0, len(s.of.ends))
	for i := range s.of.ends {
		if fd := s.of.ends[i].receiver(s.number); fd >= 0 {
			fds = append(fds, fd)
		}
	}
	return fds
}

// Close implements Bind. The UDP closes the sockets.
func (s *shard) Close() error { return nil }

// Send implements Bind.
func (s *shard) Send(msgs []Message) (int, error) {
	done := 0
	for done < len(msgs) {
		// Only messages from the same socket can share a call.
		n := 1
		for done+n < len(msgs) && n < sendBatch && msgs[done+n].Source == msgs[done].Source {
			n++
		}
		e := &s.of.ends[msgs[done].Source/poolSize]
		for i := range n {
			s.tx.prepareSend(i, &msgs[done+i], e)
		}
		sent, err := sendmmsg(e.out[msgs[done].Source%poolSize], s.tx.hdrs[:n])
		done += sent
		if err != nil {
			return done, s.judge(err, &msgs[done])
		}
	}
	return done, nil
}

// judge maps the kernel's error for a message to an error of Bind.
func (s *shard) judge(err error, m *Message) error {
	switch {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOBUFS):
		return ErrFull
	case errors.Is(err, unix.EIO) && packetsIn(m) > 1:
		s.gso = false
		return ErrSegments
	}
	return err
}

// prepareSend sets the i-th message to m.
func (b *batchIO) prepareSend(i int, m *Message, e *endpoint) {
	h := &b.hdrs[i].hdr
	h.Namelen = putName(&b.names[i], m.Remote, e.scope)
	b.iovs[i].Base = &m.Data[0]
	b.iovs[i].SetLen(len(m.Data))
	if m.Segment <= 0 || m.Segment >= len(m.Data) {
		h.Control = nil
		h.SetControllen(0)
		return
	}
	c := b.control[i*b.room : (i+1)*b.room]
	putCmsg(c, unix.SOL_UDP, udpSegment, 2)
	binary.NativeEndian.PutUint16(c[cmsgHeader:], uint16(m.Segment))
	h.Control = &c[0]
	h.SetControllen(segmentControl)
}

// Receive implements Bind.
func (s *shard) Receive(msgs []Message) (int, error) {
	done := 0
	ends := s.of.ends
	for range ends {
		if done == len(msgs) {
			break
		}
		if s.next >= len(ends) {
			s.next = 0
		}
		e := &ends[s.next]
		s.next++ // round-robin
		// An endpoint without a socket had an address that is gone.
		if fd := e.receiver(s.number); fd >= 0 {
			done += s.receiveFrom(fd, e, msgs[done:])
		}
	}
	return done, nil
}

// receiveFrom fills in messages that arrived at one socket of e.
func (s *shard) receiveFrom(fd int, e *endpoint, msgs []Message) int {
	n := min(len(msgs), len(s.rx.hdrs))
	for i := range n {
		s.rx.prepareReceive(i, &msgs[i])
	}
	n, err := recvmmsg(fd, s.rx.hdrs[:n])
	if err != nil {
		// There is nothing to read, or an asynchronous error of an earlier send, which is cleared now.
		return 0
	}
	for i := range n {
		s.rx.finishReceive(i, &msgs[i], e)
	}
	return n
}

func (b *batchIO) prepareReceive(i int, m *Message) {
	h := &b.hdrs[i].hdr
	h.Namelen = nameRoom
	h.SetControllen(b.room)
	b.iovs[i].Base = &m.Data[0]
	b.iovs[i].SetLen(len(m.Data))
}

func (b *batchIO) finishReceive(i int, m *Message, e *endpoint) {
	h := &b.hdrs[i]
	m.Data = m.Data[:h.n]
	m.Remote = readName(&b.names[i])
	m.Local = e.local
	m.Segment, m.CE = 0, false
	for c := b.control[i*b.room:][:h.hdr.Controllen]; len(c) > cmsgHeader; {
		size := int(binary.NativeEndian.Uint64(c))
		if size <= cmsgHeader || size > len(c) {
			return
		}
		m.readControl(binary.NativeEndian.Uint32(c[8:]), binary.NativeEndian.Uint32(c[12:]), c[cmsgHeader:size])
		c = c[min(len(c), (size+7)&^7):]
	}
}

// readControl decodes a control message.
func (m *Message) readControl(level, kind uint32, data []byte) {
	switch {
	case level == unix.SOL_UDP && kind == udpGRO && len(data) >= 4:
		m.Segment = int(binary.NativeEndian.Uint32(data))
	case level == unix.IPPROTO_IP && kind == unix.IP_TOS:
		m.CE = data[0]&3 == ce
	case level == unix.IPPROTO_IPV6 && kind == unix.IPV6_TCLASS && len(data) >= 4:
		m.CE = binary.NativeEndian.Uint32(data)&3 == ce
	}
}

// putCmsg writes the header of a control message with n bytes of data.
func putCmsg(c []byte, level, kind, n int) {
	binary.NativeEndian.PutUint64(c, uint64(cmsgHeader+n))
	binary.NativeEndian.PutUint32(c[8:], uint32(level))
	binary.NativeEndian.PutUint32(c[12:], uint32(kind))
}

// putName writes a as struct sockaddr_in or sockaddr_in6 and returns its length.
func putName(b *[nameRoom]byte, a netip.AddrPort, scope uint32) uint32 {
	binary.BigEndian.PutUint16(b[2:], a.Port())
	if a.Addr().Is4() {
		binary.NativeEndian.PutUint16(b[0:], unix.AF_INET)
		ip := a.Addr().As4()
		copy(b[4:], ip[:])
		return unix.SizeofSockaddrInet4
	}
	binary.NativeEndian.PutUint16(b[0:], unix.AF_INET6)
	binary.NativeEndian.PutUint32(b[4:], 0)
	ip := a.Addr().As16()
	copy(b[8:], ip[:])
	if !a.Addr().IsLinkLocalUnicast() && !a.Addr().IsLinkLocalMulticast() {
		scope = 0
	}
	binary.NativeEndian.PutUint32(b[24:], scope)
	return unix.SizeofSockaddrInet6
}

// readName decodes the sender's address.
func readName(b *[nameRoom]byte) netip.AddrPort {
	port := binary.BigEndian.Uint16(b[2:])
	if binary.NativeEndian.Uint16(b[0:]) == unix.AF_INET {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:24])), port)
}
