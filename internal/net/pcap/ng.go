package pcap

import (
	"encoding/binary"
	"fmt"
	"io"
	"time"
)

// Blocks and options of pcapng (draft-ietf-opsawg-pcapng).
const (
	blockSection    = 0x0a0d0d0a
	blockInterface  = 1
	blockStatistics = 5
	blockPacket     = 6

	byteOrderMagic = 0x1a2b3c4d

	optionEnd         = 0
	optionApplication = 4 // of a section: the program that wrote it
	optionResolution  = 9 // of an interface: 10^-n seconds
	optionReceived    = 4 // of statistics: packets
	optionDropped     = 5
)

// An NGWriter writes packets to a file in pcapng format, with a resolution of nanoseconds. Such a file has statistics.
type NGWriter struct {
	w   io.Writer
	buf []byte
}

// NewNGWriter writes the headers: a section with one interface.
func NewNGWriter(w io.Writer, t LinkType, program string) (*NGWriter, error) {
	n := &NGWriter{w: w}
	n.begin(blockSection)
	n.buf = binary.LittleEndian.AppendUint32(n.buf, byteOrderMagic)
	n.buf = binary.LittleEndian.AppendUint16(n.buf, 1)          // version 1.0
	n.buf = binary.LittleEndian.AppendUint16(n.buf, 0)          //
	n.buf = binary.LittleEndian.AppendUint64(n.buf, ^uint64(0)) // the section's length is not known
	n.option(optionApplication, []byte(program))
	n.option(optionEnd, nil)
	if err := n.end(); err != nil {
		return nil, err
	}
	n.begin(blockInterface)
	n.buf = binary.LittleEndian.AppendUint16(n.buf, uint16(t))
	n.buf = binary.LittleEndian.AppendUint16(n.buf, 0)
	n.buf = binary.LittleEndian.AppendUint32(n.buf, maxPacket)
	n.option(optionResolution, []byte{9})
	n.option(optionEnd, nil)
	return n, n.end()
}

// Write appends one packet, of which so many bytes were on the wire.
func (n *NGWriter) Write(at time.Time, packet []byte, length int) error {
	n.begin(blockPacket)
	n.buf = binary.LittleEndian.AppendUint32(n.buf, 0) // the interface
	n.time(at)
	n.buf = binary.LittleEndian.AppendUint32(n.buf, uint32(len(packet)))
	n.buf = binary.LittleEndian.AppendUint32(n.buf, uint32(length))
	n.buf = append(n.buf, packet...)
	return n.end()
}

// Statistics appends how many packets there were for the capture, and how many are not in it.
func (n *NGWriter) Statistics(at time.Time, received, dropped uint64) error {
	n.begin(blockStatistics)
	n.buf = binary.LittleEndian.AppendUint32(n.buf, 0)
	n.time(at)
	n.option(optionReceived, binary.LittleEndian.AppendUint64(nil, received))
	n.option(optionDropped, binary.LittleEndian.AppendUint64(nil, dropped))
	n.option(optionEnd, nil)
	return n.end()
}

// time appends a time: its upper half comes first.
func (n *NGWriter) time(at time.Time) {
	ns := uint64(at.UnixNano())
	n.buf = binary.LittleEndian.AppendUint32(n.buf, uint32(ns>>32))
	n.buf = binary.LittleEndian.AppendUint32(n.buf, uint32(ns))
}

// begin begins a block: its type, and its length, which end sets.
func (n *NGWriter) begin(block uint32) {
	n.buf = binary.LittleEndian.AppendUint32(n.buf[:0], block)
	n.buf = append(n.buf, 0, 0, 0, 0)
}

func (n *NGWriter) option(code uint16, value []byte) {
	n.buf = binary.LittleEndian.AppendUint16(n.buf, code)
	n.buf = binary.LittleEndian.AppendUint16(n.buf, uint16(len(value)))
	n.buf = append(n.buf, value...)
	n.pad()
}

// pad fills up to four bytes.
func (n *NGWriter) pad() {
	for len(n.buf)%4 != 0 {
		n.buf = append(n.buf, 0)
	}
}

// end writes the block: the length is at both ends.
func (n *NGWriter) end() error {
	n.pad()
	length := uint32(len(n.buf) + 4)
	n.buf = binary.LittleEndian.AppendUint32(n.buf, length)
	binary.LittleEndian.PutUint32(n.buf[4:], length)
	if _, err := n.w.Write(n.buf); err != nil {
		return fmt.Errorf("write to the capture: %w", err)
	}
	return nil
}
