package wire

// DREQ ends a connection (table 112).
type DREQ []byte

var (
	dreqRemoteQPN = field{8, 0, 24}
)

const (
	dreqPrivate = 12
)

// IsValid reports whether d can be read.
func (d DREQ) IsValid() bool { return len(d) >= CMSize }

// LocalCommID returns the communication ID that the sender chose.
func (d DREQ) LocalCommID() uint32 { return cmLocalID.get(d) }

// SetLocalCommID sets LocalCommID.
func (d DREQ) SetLocalCommID(v uint32) { cmLocalID.set(d, v) }

// RemoteCommID returns the communication ID that the receiver chose.
func (d DREQ) RemoteCommID() uint32 { return cmRemoteID.get(d) }

// SetRemoteCommID sets RemoteCommID.
func (d DREQ) SetRemoteCommID(v uint32) { cmRemoteID.set(d, v) }

// RemoteQPN returns the number of the receiver's queue pair.
func (d DREQ) RemoteQPN() uint32 { return dreqRemoteQPN.get(d) }

// SetRemoteQPN sets RemoteQPN.
func (d DREQ) SetRemoteQPN(v uint32) { dreqRemoteQPN.set(d, v) }

// Private returns the private data of the applications.
func (d DREQ) Private() []byte { return d[dreqPrivate:CMSize] }

// DREP answers a DREQ (table 113).
type DREP []byte

const (
	drepPrivate = 8
)

// IsValid reports whether d can be read.
func (d DREP) IsValid() bool { return len(d) >= CMSize }

// LocalCommID returns the communication ID that the sender chose.
func (d DREP) LocalCommID() uint32 { return cmLocalID.get(d) }

// SetLocalCommID sets LocalCommID.
func (d DREP) SetLocalCommID(v uint32) { cmLocalID.set(d, v) }

// RemoteCommID returns the communication ID that the receiver chose.
func (d DREP) RemoteCommID() uint32 { return cmRemoteID.get(d) }

// SetRemoteCommID sets RemoteCommID.
func (d DREP) SetRemoteCommID(v uint32) { cmRemoteID.set(d, v) }

// Private returns the private data of the applications.
func (d DREP) Private() []byte { return d[drepPrivate:CMSize] }
