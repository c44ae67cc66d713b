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

// LocalCommID returns the communication ID that the sender chose.
func (p REP) LocalCommID() uint32 { return cmLocalID.get(p) }

// SetLocalCommID sets LocalCommID.
func (p REP) SetLocalCommID(v uint32) { cmLocalID.set(p, v) }

// RemoteCommID returns the communication ID that the receiver chose.
func (p REP) RemoteCommID() uint32 { return cmRemoteID.get(p) }

// SetRemoteCommID sets RemoteCommID.
func (p REP) SetRemoteCommID(v uint32) { cmRemoteID.set(p, v) }

// LocalQKey returns the queue key, for RD only.
func (p REP) LocalQKey() uint32 { return repLocalQKey.get(p) }

// SetLocalQKey sets LocalQKey.
func (p REP) SetLocalQKey(v uint32) { repLocalQKey.set(p, v) }

// LocalQPN returns the number of the sender's queue pair.
func (p REP) LocalQPN() uint32 { return repLocalQPN.get(p) }

// SetLocalQPN sets LocalQPN.
func (p REP) SetLocalQPN(v uint32) { repLocalQPN.set(p, v) }

// LocalEECN returns the EE context number, used only by RD.
func (p REP) LocalEECN() uint32 { return repLocalEECN.get(p) }

// SetLocalEECN sets LocalEECN.
func (p REP) SetLocalEECN(v uint32) { repLocalEECN.set(p, v) }

// StartingPSN returns the first PSN that the receiver of this message sends.
func (p REP) StartingPSN() uint32 { return repStartingPSN.get(p) }

// SetStartingPSN sets StartingPSN.
func (p REP) SetStartingPSN(v uint32) { repStartingPSN.set(p, v) }

// ResponderResources returns how many outstanding READs and atomics the sender accepts.
func (p REP) ResponderResources() uint8 { return uint8(repResponderResources.get(p)) }

// SetResponderResources sets ResponderResources.
func (p REP) SetResponderResources(v uint8) { repResponderResources.set(p, uint32(v)) }

// InitiatorDepth returns how many outstanding READs and atomics the sender wants to issue.
func (p REP) InitiatorDepth() uint8 { return uint8(repInitiatorDepth.get(p)) }

// SetInitiatorDepth sets InitiatorDepth.
func (p REP) SetInitiatorDepth(v uint8) { repInitiatorDepth.set(p, uint32(v)) }

// TargetAckDelay returns the code of the sender's ACK delay.
func (p REP) TargetAckDelay() uint8 { return uint8(repTargetAckDelay.get(p)) }

// SetTargetAckDelay sets TargetAckDelay.
func (p REP) SetTargetAckDelay(v uint8) { repTargetAckDelay.set(p, uint32(v)) }

// FailoverAccepted returns whether the alternate path was accepted; 0 means accepted.
func (p REP) FailoverAccepted() uint8 { return uint8(repFailoverAccepted.get(p)) }

// SetFailoverAccepted sets FailoverAccepted.
func (p REP) SetFailoverAccepted(v uint8) { repFailoverAccepted.set(p, uint32(v)) }

// FlowControl reports whether the sender understands end-to-end credits.
func (p REP) FlowControl() bool { return repFlowControl.getBool(p) }

// SetFlowControl sets FlowControl.
func (p REP) SetFlowControl(v bool) { repFlowControl.setBool(p, v) }

// RNRRetryCount returns how often the receiver retries after an RNR NAK.
func (p REP) RNRRetryCount() uint8 { return uint8(repRNRRetryCount.get(p)) }

// SetRNRRetryCount sets RNRRetryCount.
func (p REP) SetRNRRetryCount(v uint8) { repRNRRetryCount.set(p, uint32(v)) }

// SRQ reports whether the sender uses a shared receive queue.
func (p REP) SRQ() bool { return repSRQ.getBool(p) }

// SetSRQ sets SRQ.
func (p REP) SetSRQ(v bool) { repSRQ.setBool(p, v) }

// LocalCAGUID returns the GUID of the sender's channel adapter.
func (p REP) LocalCAGUID() uint64 { return get64(p, repLocalCAGUID) }

// SetLocalCAGUID sets LocalCAGUID.
func (p REP) SetLocalCAGUID(v uint64) { put64(p, repLocalCAGUID, v) }

// Private returns the private data of the applications.
func (p REP) Private() []byte { return p[repPrivate:CMSize] }

// RTU ends the handshake: the connection is ready to use (table 111).
type RTU []byte

const (
	rtuPrivate = 8
)

// IsValid reports whether r can be read.
func (r RTU) IsValid() bool { return len(r) >= CMSize }

// LocalCommID returns the communication ID that the sender chose.
func (r RTU) LocalCommID() uint32 { return cmLocalID.get(r) }

// SetLocalCommID sets LocalCommID.
func (r RTU) SetLocalCommID(v uint32) { cmLocalID.set(r, v) }

// RemoteCommID returns the communication ID that the receiver chose.
func (r RTU) RemoteCommID() uint32 { return cmRemoteID.get(r) }

// SetRemoteCommID sets RemoteCommID.
func (r RTU) SetRemoteCommID(v uint32) { cmRemoteID.set(r, v) }

// Private returns the private data of the applications.
func (r RTU) Private() []byte { return r[rtuPrivate:CMSize] }

// MRA announces that the answer to a message will take longer (table 107).
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

// LocalCommID returns the communication ID that the sender chose.
func (m MRA) LocalCommID() uint32 { return cmLocalID.get(m) }

// SetLocalCommID sets LocalCommID.
func (m MRA) SetLocalCommID(v uint32) { cmLocalID.set(m, v) }

// RemoteCommID returns the communication ID that the receiver chose.
func (m MRA) RemoteCommID() uint32 { return cmRemoteID.get(m) }

// SetRemoteCommID sets RemoteCommID.
func (m MRA) SetRemoteCommID(v uint32) { cmRemoteID.set(m, v) }

// Message returns the message that has arrived: 0 for a REQ, 1 for a REP, 2 for a LAP.
func (m MRA) Message() uint8 { return uint8(mraMessage.get(m)) }

// SetMessage sets Message.
func (m MRA) SetMessage(v uint8) { mraMessage.set(m, uint32(v)) }

// ServiceTimeout returns the code of the time until the answer.
func (m MRA) ServiceTimeout() uint8 { return uint8(mraServiceTimeout.get(m)) }

// SetServiceTimeout sets ServiceTimeout.
func (m MRA) SetServiceTimeout(v uint8) { mraServiceTimeout.set(m, uint32(v)) }

// Private returns the private data of the applications.
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

// LocalCommID returns the communication ID that the sender chose.
func (r REJ) LocalCommID() uint32 { return cmLocalID.get(r) }

// SetLocalCommID sets LocalCommID.
func (r REJ) SetLocalCommID(v uint32) { cmLocalID.set(r, v) }

// RemoteCommID returns the communication ID that the receiver chose.
func (r REJ) RemoteCommID() uint32 { return cmRemoteID.get(r) }

// SetRemoteCommID sets RemoteCommID.
func (r REJ) SetRemoteCommID(v uint32) { cmRemoteID.set(r, v) }

// Message returns the rejected message: 0 for a REQ, 1 for a REP, 2 for neither.
func (r REJ) Message() uint8 { return uint8(rejMessage.get(r)) }

// SetMessage sets Message.
func (r REJ) SetMessage(v uint8) { rejMessage.set(r, uint32(v)) }

// InfoLength returns the number of valid bytes in Info.
func (r REJ) InfoLength() uint8 { return uint8(rejInfoLength.get(r)) }

// SetInfoLength sets InfoLength.
func (r REJ) SetInfoLength(v uint8) { rejInfoLength.set(r, uint32(v)) }

// Reason returns the reject reason.
func (r REJ) Reason() uint16 { return uint16(rejReason.get(r)) }

// SetReason sets Reason.
func (r REJ) SetReason(v uint16) { rejReason.set(r, uint32(v)) }

// Info returns the value that the sender would have accepted.
func (r REJ) Info() []byte { return r[rejInfo:rejPrivate] }

// Private returns the private data of the applications.
func (r REJ) Private() []byte { return r[rejPrivate:CMSize] }
