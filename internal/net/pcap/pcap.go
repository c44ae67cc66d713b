// Package pcap reads and writes capture files in the classic libpcap format, and writes them in pcapng format (ng.go). Wireshark,
// tshark and tcpdump understand both.
//
//	file header (24 bytes): magic, version 2.4, snap length, link type
//	record header (16 bytes): seconds, fraction, bytes kept, bytes on the wire
//	bytes
//	…
//
// It does not interpret packets. `vrdma pcap` writes captures with it, and tests read the golden captures with it.
package pcap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
)

// LinkType is the type of the first header of a packet.
type LinkType uint32

const (
	Ethernet LinkType = 1
	RawIP    LinkType = 101 // IPv4 or IPv6, according to the first four bits
)

const (
	magicMicro = 0xa1b2c3d4
	magicNano  = 0xa1b23c4d
	headerSize = 24
	recordSize = 16
	// maxPacket limits the memory that a reader allocates for a corrupted file.
	maxPacket = 1 << 18
)

// A Writer writes packets to a file, with a resolution of nanoseconds.
type Writer struct {
	w   io.Writer
	rec [recordSize]byte
}

// NewWriter writes the file header.
func NewWriter(w io.Writer, t LinkType) (*Writer, error) {
	var h [headerSize]byte
	binary.LittleEndian.PutUint32(h[0:], magicNano)
	binary.LittleEndian.PutUint16(h[4:], 2)
	binary.LittleEndian.PutUint16(h[6:], 4)
	binary.LittleEndian.PutUint32(h[16:], maxPacket)
	binary.LittleEndian.PutUint32(h[20:], uint32(t))
	if _, err := w.Write(h[:]); err != nil {
		return nil, fmt.Errorf("write the header of the capture: %w", err)
	}
	return &Writer{w: w}, nil
}

// Write appends one packet.
func (w *Writer) Write(at time.Time, packet []byte) error {
	if err := w.WriteHeader(at, len(packet)); err != nil {
		return err
	}
	if _, err := w.w.Write(packet); err != nil {
		return fmt.Errorf("write to the capture: %w", err)
	}
	return nil
}

// WriteHeader writes the header of a packet of n bytes; the caller writes the packet to the file.
func (w *Writer) WriteHeader(at time.Time, n int) error { return w.WriteShort(at, n, n) }

// WriteShort is WriteHeader for the first n bytes of a packet that had so many on the wire.
func (w *Writer) WriteShort(at time.Time, n, length int) error {
	binary.LittleEndian.PutUint32(w.rec[0:], uint32(at.Unix()))
	binary.LittleEndian.PutUint32(w.rec[4:], uint32(at.Nanosecond()))
	binary.LittleEndian.PutUint32(w.rec[8:], uint32(n))
	binary.LittleEndian.PutUint32(w.rec[12:], uint32(length))
	if _, err := w.w.Write(w.rec[:]); err != nil {
		return fmt.Errorf("write to the capture: %w", err)
	}
	return nil
}

// A Reader reads packets from a file.
type Reader struct {
	r     io.Reader
	order binary.ByteOrder
	unit  time.Duration
	link  LinkType
	buf   []byte
	wire  int // the length of the last packet on the wire
}

// NewReader reads the file header.
func NewReader(r io.Reader) (*Reader, error) {
	var h [headerSize]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return nil, fmt.Errorf("read the header of the capture: %w", err)
	}
	p := &Reader{r: r}
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		switch order.Uint32(h[:]) {
		case magicMicro:
			p.order, p.unit = order, time.Microsecond
		case magicNano:
			p.order, p.unit = order, time.Nanosecond
		}
	}
	if p.order == nil {
		return nil, fmt.Errorf("not a libpcap capture: it begins with % x (pcapng files have to be converted, with editcap -F pcap)", h[:4])
	}
	p.link = LinkType(p.order.Uint32(h[20:]) & 0xffff)
	return p, nil
}

// Length returns the number of bytes that the last packet had on the wire.
func (p *Reader) Length() int { return p.wire }

// LinkType returns the type of the packets' first header.
func (p *Reader) LinkType() LinkType { return p.link }

// Next reads the next packet, which is valid until the next call. At the end of the file it returns io.EOF.
func (p *Reader) Next() (at time.Time, packet []byte, err error) {
	var h [recordSize]byte
	if _, err := io.ReadFull(p.r, h[:]); err != nil {
		if errors.Is(err, io.EOF) {
			return time.Time{}, nil, io.EOF
		}
		return time.Time{}, nil, fmt.Errorf("read the capture: %w", err)
	}
	n := p.order.Uint32(h[8:])
	p.wire = int(p.order.Uint32(h[12:]))
	if n > maxPacket {
		return time.Time{}, nil, fmt.Errorf("read the capture: a packet of %d bytes; the file is damaged", n)
	}
	if int(n) > cap(p.buf) {
		p.buf = make([]byte, n)
	}
	p.buf = p.buf[:n]
	if _, err := io.ReadFull(p.r, p.buf); err != nil {
		return time.Time{}, nil, fmt.Errorf("read the capture: %w", err)
	}
	sec, frac := p.order.Uint32(h[0:]), p.order.Uint32(h[4:])
	return time.Unix(int64(sec), int64(frac)*int64(p.unit)), p.buf, nil
}
