package wire

// SIDRREQ asks for the queue pair that offers a service over UD (table 119).
type SIDRREQ []byte

var (
	sidrReqRequestID = field{0, 0, 32}
	sidrReqPKey      = field{4, 0, 16}
)

const (
	sidrReqServiceID = 8
	sidrReqPrivate   = 16
)

// IsValid reports whether s can be read.
func (s SIDRREQ) IsValid() bool { return len(s) >= CMSize }

// RequestID returns the ID that the sender chose for the request.
func (s SIDRREQ) RequestID() uint32 { return sidrReqRequestID.get(s) }

// SetRequestID sets RequestID.
func (s SIDRREQ) SetRequestID(v uint32) { sidrReqRequestID.set(s, v) }

// PKey returns the partition key.
func (s SIDRREQ) PKey() uint16 { return uint16(sidrReqPKey.get(s)) }

// SetPKey sets PKey.
func (s SIDRREQ) SetPKey(v uint16) { sidrReqPKey.set(s, uint32(v)) }

// ServiceID returns the service.
func (s SIDRREQ) ServiceID() uint64 { return get64(s, sidrReqServiceID) }

// SetServiceID sets ServiceID.
func (s SIDRREQ) SetServiceID(v uint64) { put64(s, sidrReqServiceID, v) }

// Private returns the private data of the applications.
func (s SIDRREQ) Private() []byte { return s[sidrReqPrivate:CMSize] }

// SIDRREP answers a SIDRREQ (table 120).
type SIDRREP []byte

var (
	sidrRepRequestID  = field{0, 0, 32}
	sidrRepStatus     = field{4, 0, 8}
	sidrRepInfoLength = field{5, 0, 8}
	sidrRepQPN        = field{8, 0, 24}
	sidrRepQKey       = field{20, 0, 32}
)

const (
	sidrRepServiceID = 12
	sidrRepInfo      = 24
	sidrRepPrivate   = 96
)

// IsValid reports whether s can be read.
func (s SIDRREP) IsValid() bool { return len(s) >= CMSize }

// RequestID returns the ID of the request.
func (s SIDRREP) RequestID() uint32 { return sidrRepRequestID.get(s) }

// SetRequestID sets RequestID.
func (s SIDRREP) SetRequestID(v uint32) { sidrRepRequestID.set(s, v) }

// Status returns the result; 0 means found.
func (s SIDRREP) Status() uint8 { return uint8(sidrRepStatus.get(s)) }

// SetStatus sets Status.
func (s SIDRREP) SetStatus(v uint8) { sidrRepStatus.set(s, uint32(v)) }

// InfoLength returns the number of valid bytes in Info.
func (s SIDRREP) InfoLength() uint8 { return uint8(sidrRepInfoLength.get(s)) }

// SetInfoLength sets InfoLength.
func (s SIDRREP) SetInfoLength(v uint8) { sidrRepInfoLength.set(s, uint32(v)) }

// QPN returns the number of the queue pair.
func (s SIDRREP) QPN() uint32 { return sidrRepQPN.get(s) }

// SetQPN sets QPN.
func (s SIDRREP) SetQPN(v uint32) { sidrRepQPN.set(s, v) }

// ServiceID returns the service.
func (s SIDRREP) ServiceID() uint64 { return get64(s, sidrRepServiceID) }

// SetServiceID sets ServiceID.
func (s SIDRREP) SetServiceID(v uint64) { put64(s, sidrRepServiceID, v) }

// QKey returns the queue key.
func (s SIDRREP) QKey() uint32 { return sidrRepQKey.get(s) }

// SetQKey sets QKey.
func (s SIDRREP) SetQKey(v uint32) { sidrRepQKey.set(s, v) }

// Info returns additional information about the status.
func (s SIDRREP) Info() []byte { return s[sidrRepInfo:sidrRepPrivate] }

// Private returns the private data of the applications.
func (s SIDRREP) Private() []byte { return s[sidrRepPrivate:CMSize] }
