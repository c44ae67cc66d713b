package wire

import "encoding/binary"

// IPAddressing is the header that rdma_cm puts before the private data of a REQ or SIDRREQ: the IP
// addresses of the two sides (IBA annex A11).
type IPAddressing []byte

// IPAddressingSize is the length of the header; the application's data follows.
const IPAddressingSize = 36

const (
	ipaVersion = 0
	ipaFamily  = 1
	ipaPort    = 2
	ipaSrc     = 4
	ipaDst     = 20
)

// IsValid reports whether a is long enough, has version 0 and addresses of IPv4 or IPv6.
func (a IPAddressing) IsValid() bool {
	return len(a) >= IPAddressingSize && a[ipaVersion] == 0 && (a.IPVersion() == 4 || a.IPVersion() == 6)
}

// IPVersion returns 4 or 6.
func (a IPAddressing) IPVersion() uint8 { return a[ipaFamily] >> 4 }

// SetIPVersion sets the version of IP.
func (a IPAddressing) SetIPVersion(v uint8) { a[ipaFamily] = v << 4 }

// SrcPort returns the sender's port.
func (a IPAddressing) SrcPort() uint16 { return binary.BigEndian.Uint16(a[ipaPort:]) }

// SetSrcPort sets the sender's port.
func (a IPAddressing) SetSrcPort(v uint16) { binary.BigEndian.PutUint16(a[ipaPort:], v) }

// Src returns the sender's address; an IPv4 address is in the last four bytes, after zeros.
func (a IPAddressing) Src() [16]byte { return [16]byte(a[ipaSrc:]) }

// SetSrc sets the sender's address.
func (a IPAddressing) SetSrc(v [16]byte) { copy(a[ipaSrc:ipaDst], v[:]) }

// Dst returns the receiver's address.
func (a IPAddressing) Dst() [16]byte { return [16]byte(a[ipaDst:]) }

// SetDst sets the receiver's address.
func (a IPAddressing) SetDst(v [16]byte) { copy(a[ipaDst:IPAddressingSize], v[:]) }
