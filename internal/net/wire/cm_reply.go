package wire

// REP accepts a connection (table 110).
type REP []byte

var (
	repLocalQKey          = field{8, 0, 32}
	repLocalQPN           = field{12, 0, 24}
	repLocalEECN          = field{16, 0, 24}
	repStartingPSN        = field{20, 0, 24}
	repResponderResources = field{24, 0, 8}
	repInitiatorDepth     = field{25, 0, 8}
	repTargetAckDelay     = field{26, 0, 5}
	repFailoverAccepted   = field{26, 5, 2}
	repFlowControl        = field{26, 7, 1}
	repRNRRetryCount      = field{27, 0, 3}
	repSRQ                = field{27, 3, 1}
)

const (
	repLocalCAGUID = 28
	repPrivate     = 36
)

// IsValid reports whether p can be read.
func (p REP) IsValid() bool { return len(p) >= CMSize }

// LocalCommID is the sender's number for the connection.
func (p REP) LocalCommID() uint32 { return cmLocalID.get(p) }

// SetLocalCommID sets it.
func (p REP) SetLocalCommID(v uint32) { cmLocalID.set(p, v) }

// RemoteCommID is the receiver's number for the connection.
func (p REP) RemoteCommID() uint32 { return cmRemoteID.get(p) }

// SetRemoteCommID sets it.
func (p REP) SetRemoteCommID(v uint32) { cmRemoteID.set(p, v) }

// LocalQKey is the queue key, for RD only.
func (p REP) LocalQKey() uint32 { return repLocalQKey.get(p) }

// SetLocalQKey sets it.
func (p REP) SetLocalQKey(v uint32) { repLocalQKey.set(p, v) }

// LocalQPN is the sender's queue pair.
func (p REP) LocalQPN() uint32 { return repLocalQPN.get(p) }

// SetLocalQPN sets it.
func (p REP) SetLocalQPN(v uint32) { repLocalQPN.set(p, v) }

// LocalEECN is for RD only.
func (p REP) LocalEECN() uint32 { return repLocalEECN.get(p) }

// SetLocalEECN sets it.
func (p REP) SetLocalEECN(v uint32) { repLocalEECN.set(p, v) }

// StartingPSN is the PSN from which the receiver of this message begins to send.
func (p REP) StartingPSN() uint32 { return repStartingPSN.get(p) }

// SetStartingPSN sets it.
func (p REP) SetStartingPSN(v uint32) { repStartingPSN.set(p, v) }

// ResponderResources is how many READs and atomics the sender will hold.
func (p REP) ResponderResources() uint8 { return uint8(repResponderResources.get(p)) }

// SetResponderResources sets it.
func (p REP) SetResponderResources(v uint8) { repResponderResources.set(p, uint32(v)) }

// InitiatorDepth is how many READs and atomics the sender wants to have outstanding.
func (p REP) InitiatorDepth() uint8 { return uint8(repInitiatorDepth.get(p)) }

// SetInitiatorDepth sets it.
func (p REP) SetInitiatorDepth(v uint8) { repInitiatorDepth.set(p, uint32(v)) }

// TargetAckDelay is the code of the time that the sender takes to acknowledge.
func (p REP) TargetAckDelay() uint8 { return uint8(repTargetAckDelay.get(p)) }

// SetTargetAckDelay sets it.
func (p REP) SetTargetAckDelay(v uint8) { repTargetAckDelay.set(p, uint32(v)) }

// FailoverAccepted is what becomes of the alternate path: 0 for accepted.
func (p REP) FailoverAccepted() uint8 { return uint8(repFailoverAccepted.get(p)) }

// SetFailoverAccepted sets it.
func (p REP) SetFailoverAccepted(v uint8) { repFailoverAccepted.set(p, uint32(v)) }

// FlowControl says that the sender understands end-to-end credits.
func (p REP) FlowControl() bool { return repFlowControl.getBool(p) }

// SetFlowControl sets it.
func (p REP) SetFlowControl(v bool) { repFlowControl.setBool(p, v) }

// RNRRetryCount is how often the receiver is to retry when the sender is not ready.
func (p REP) RNRRetryCount() uint8 { return uint8(repRNRRetryCount.get(p)) }

// SetRNRRetryCount sets it.
func (p REP) SetRNRRetryCount(v uint8) { repRNRRetryCount.set(p, uint32(v)) }

// SRQ says that the sender receives from a shared queue.
func (p REP) SRQ() bool { return repSRQ.getBool(p) }

// SetSRQ sets it.
func (p REP) SetSRQ(v bool) { repSRQ.setBool(p, v) }

// LocalCAGUID is the sender's device.
func (p REP) LocalCAGUID() uint64 { return get64(p, repLocalCAGUID) }

// SetLocalCAGUID sets it.
func (p REP) SetLocalCAGUID(v uint64) { put64(p, repLocalCAGUID, v) }

// Private is what the consumers tell each other.
func (p REP) Private() []byte { return p[repPrivate:CMSize] }

// RTU ends the handshake: the connection is ready to use (table 111).
type RTU []byte

const (
	rtuPrivate = 8
)

// IsValid reports whether r can be read.
func (r RTU) IsValid() bool { return len(r) >= CMSize }

// LocalCommID is the sender's number for the connection.
func (r RTU) LocalCommID() uint32 { return cmLocalID.get(r) }

// SetLocalCommID sets it.
func (r RTU) SetLocalCommID(v uint32) { cmLocalID.set(r, v) }

// RemoteCommID is the receiver's number for the connection.
func (r RTU) RemoteCommID() uint32 { return cmRemoteID.get(r) }

// SetRemoteCommID sets it.
func (r RTU) SetRemoteCommID(v uint32) { cmRemoteID.set(r, v) }

// Private is what the consumers tell each other.
func (r RTU) Private() []byte { return r[rtuPrivate:CMSize] }

// MRA asks for patience (table 107).
type MRA []byte

var (
	mraMessage        = field{8, 0, 2}
	mraServiceTimeout = field{9, 0, 5}
)

const (
	mraPrivate = 10
)

// IsValid reports whether m can be read.
func (m MRA) IsValid() bool { return len(m) >= CMSize }

// LocalCommID is the sender's number for the connection.
func (m MRA) LocalCommID() uint32 { return cmLocalID.get(m) }

// SetLocalCommID sets it.
func (m MRA) SetLocalCommID(v uint32) { cmLocalID.set(m, v) }

// RemoteCommID is the receiver's number for the connection.
func (m MRA) RemoteCommID() uint32 { return cmRemoteID.get(m) }

// SetRemoteCommID sets it.
func (m MRA) SetRemoteCommID(v uint32) { cmRemoteID.set(m, v) }

// Message is what has arrived: 0 for a REQ, 1 for a REP, 2 for a LAP.
func (m MRA) Message() uint8 { return uint8(mraMessage.get(m)) }

// SetMessage sets it.
func (m MRA) SetMessage(v uint8) { mraMessage.set(m, uint32(v)) }

// ServiceTimeout is the code of the time in which the answer will come.
func (m MRA) ServiceTimeout() uint8 { return uint8(mraServiceTimeout.get(m)) }

// SetServiceTimeout sets it.
func (m MRA) SetServiceTimeout(v uint8) { mraServiceTimeout.set(m, uint32(v)) }

// Private is what the consumers tell each other.
func (m MRA) Private() []byte { return m[mraPrivate:CMSize] }

// REJ refuses a connection (table 108).
type REJ []byte

var (
	rejMessage    = field{8, 0, 2}
	rejInfoLength = field{9, 0, 7}
	rejReason     = field{10, 0, 16}
)

const (
	rejInfo    = 12
	rejPrivate = 84
)

// IsValid reports whether r can be read.
func (r REJ) IsValid() bool { return len(r) >= CMSize }

// LocalCommID is the sender's number for the connection.
func (r REJ) LocalCommID() uint32 { return cmLocalID.get(r) }

// SetLocalCommID sets it.
func (r REJ) SetLocalCommID(v uint32) { cmLocalID.set(r, v) }

// RemoteCommID is the receiver's number for the connection.
func (r REJ) RemoteCommID() uint32 { return cmRemoteID.get(r) }

// SetRemoteCommID sets it.
func (r REJ) SetRemoteCommID(v uint32) { cmRemoteID.set(r, v) }

// Message is what is refused: 0 for a REQ, 1 for a REP, 2 for neither.
func (r REJ) Message() uint8 { return uint8(rejMessage.get(r)) }

// SetMessage sets it.
func (r REJ) SetMessage(v uint8) { rejMessage.set(r, uint32(v)) }

// InfoLength is how many bytes of Info count.
func (r REJ) InfoLength() uint8 { return uint8(rejInfoLength.get(r)) }

// SetInfoLength sets it.
func (r REJ) SetInfoLength(v uint8) { rejInfoLength.set(r, uint32(v)) }

// Reason is why.
func (r REJ) Reason() uint16 { return uint16(rejReason.get(r)) }

// SetReason sets it.
func (r REJ) SetReason(v uint16) { rejReason.set(r, uint32(v)) }

// Info is what would have been acceptable.
func (r REJ) Info() []byte { return r[rejInfo:rejPrivate] }

// Private is what the consumers tell each other.
func (r REJ) Private() []byte { return r[rejPrivate:CMSize] }
