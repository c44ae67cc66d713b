package vswitch

import "vrdma.dev/vrdma/internal/net/wire"

// This file does the work that a sender left out for receivers without offloads: checksums and splitting large segments.

// sum returns the unfolded ones' complement sum of b, starting with s.
func sum(b []byte, s uint64) uint64 {
	for ; len(b) >= 4; b = b[4:] {
		s += uint64(be.Uint32(b))
	}
	if len(b) >= 2 {
		s += uint64(be.Uint16(b)) << 16
		b = b[2:]
		if len(b) > 0 {
			s += uint64(b[0]) << 8
		}
	} else if len(b) > 0 {
		s += uint64(b[0]) << 24
	}
	return s
}

func fold(s uint64) uint16 {
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

// pseudo returns the sum of the pseudo header of TCP and UDP. b begins with the IP header.
func pseudo(b []byte, proto uint8, length int) uint64 {
	s := uint64(proto) + uint64(length)
	if b[0]>>4 == 4 {
		return sum(b[12:20], s)
	}
	return sum(b[8:40], s)
}

// complete writes the checksum of TCP or UDP into a whole frame. length is the length of the header after IP and its payload.
func complete(b []byte, l4 int, proto uint8, length int) {
	at := l4 + 16
	if proto == protoUDP {
		at = l4 + 6
	}
	be.PutUint16(b[at:], 0)
	c := ^fold(sum(b[l4:l4+length], pseudo(b[etherSize:], proto, length)))
	if c == 0 && proto == protoUDP {
		c = 0xffff // zero would mean no checksum
	}
	be.PutUint16(b[at:], c)
}

// ipEnd returns the end of the IP packet in a frame; padding may follow.
func ipEnd(b []byte) int {
	if b[etherSize]>>4 == 4 {
		return etherSize + int(be.Uint16(b[etherSize+2:]))
	}
	return etherSize + wire.IPv6Size + int(be.Uint16(b[etherSize+4:]))
}

// plain converts f to ordinary frames and passes them to send, one after another; each is valid until send returns. scratch has space
// for two frames of maximum length.
func (f *frame) plain(scratch []byte, send func(b []byte)) {
	whole := scratch[:maxFrame]
	n := f.bytes(whole)
	if n < 0 {
		return
	}
	whole = whole[:n]
	if f.virtio.flags&needsSum == 0 {
		send(whole)
		return
	}
	if f.virtio.gso == gsoNone {
		if end := ipEnd(whole); end <= n && end >= f.payload {
			complete(whole, f.l4, f.proto, end-f.l4)
			send(whole)
		}
		return
	}
	f.cut(whole, scratch[maxFrame:], send)
}

// TCP flags that only one segment of several may have.
const (
	tcpFIN = 0x01
	tcpPSH = 0x08
	tcpCWR = 0x80
)

// cut splits a large segment as the kernel does.
func (f *frame) cut(whole, scratch []byte, send func(b []byte)) {
	size := int(f.virtio.segment)
	end := min(ipEnd(whole), len(whole))
	if end < f.payload {
		return
	}
	data := whole[f.payload:end]
	id, seq, flags := uint16(0), be.Uint32(whole[f.l4+4:]), whole[f.l4+13]
	if f.ether == etherIPv4 {
		id = be.Uint16(whole[etherSize+4:])
	}
	for at := 0; at < len(data); at += size {
		part := data[at:min(len(data), at+size)]
		b := scratch[:f.payload+len(part)]
		copy(b, whole[:f.payload])
		copy(b[f.payload:], part)
		ip := b[etherSize:]
		if f.ether == etherIPv4 {
			be.PutUint16(ip[2:], uint16(len(ip)))
			be.PutUint16(ip[4:], id)
			id++
			be.PutUint16(ip[10:], 0)
			be.PutUint16(ip[10:], ^fold(sum(ip[:f.l4-etherSize], 0)))
		} else {
			be.PutUint16(ip[4:], uint16(len(ip)-wire.IPv6Size))
		}
		be.PutUint32(b[f.l4+4:], seq+uint32(at))
		set := flags
		if at+size < len(data) {
			set &^= tcpFIN | tcpPSH
		}
		if at > 0 {
			set &^= tcpCWR
		}
		b[f.l4+13] = set
		complete(b, f.l4, protoTCP, len(b)-f.l4)
		send(b)
	}
}
