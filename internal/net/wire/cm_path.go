package wire

// LAP proposes a new alternate path (table 115).
type LAP []byte

var (
	lapRemoteQPN             = field{12, 0, 24}
	lapRemoteResponseTimeout = field{15, 0, 5}
	lapLocalLID              = field{20, 0, 16}
	lapRemoteLID             = field{22, 0, 16}
	lapFlowLabel             = field{56, 0, 20}
	lapTrafficClass          = field{59, 0, 8}
	lapHopLimit              = field{60, 0, 8}
	lapPacketRate            = field{61, 2, 6}
	lapSL                    = field{62, 0, 4}
	lapSubnetLocal           = field{62, 4, 1}
	lapAckTimeout            = field{63, 0, 5}
)

const (
	lapLocalGID  = 24
	lapRemoteGID = 40
	lapPrivate   = 64
)

// IsValid reports whether l can be read.
func (l LAP) IsValid() bool { return len(l) >= CMSize }

// LocalCommID returns the communication ID that the sender chose.
func (l LAP) LocalCommID() uint32 { return cmLocalID.get(l) }

// SetLocalCommID sets LocalCommID.
func (l LAP) SetLocalCommID(v uint32) { cmLocalID.set(l, v) }

// RemoteCommID returns the communication ID that the receiver chose.
func (l LAP) RemoteCommID() uint32 { return cmRemoteID.get(l) }

// SetRemoteCommID sets RemoteCommID.
func (l LAP) SetRemoteCommID(v uint32) { cmRemoteID.set(l, v) }

// RemoteQPN returns the number of the receiver's queue pair.
func (l LAP) RemoteQPN() uint32 { return lapRemoteQPN.get(l) }

// SetRemoteQPN sets RemoteQPN.
func (l LAP) SetRemoteQPN(v uint32) { lapRemoteQPN.set(l, v) }

// RemoteResponseTimeout returns the code of the time limit for the receiver's answer.
func (l LAP) RemoteResponseTimeout() uint8 { return uint8(lapRemoteResponseTimeout.get(l)) }

// SetRemoteResponseTimeout sets RemoteResponseTimeout.
func (l LAP) SetRemoteResponseTimeout(v uint8) { lapRemoteResponseTimeout.set(l, uint32(v)) }

// LocalLID returns the LID, 0xffff on RoCE.
func (l LAP) LocalLID() uint16 { return uint16(lapLocalLID.get(l)) }

// SetLocalLID sets LocalLID.
func (l LAP) SetLocalLID(v uint16) { lapLocalLID.set(l, uint32(v)) }

// RemoteLID returns the LID, 0xffff on RoCE.
func (l LAP) RemoteLID() uint16 { return uint16(lapRemoteLID.get(l)) }

// SetRemoteLID sets RemoteLID.
func (l LAP) SetRemoteLID(v uint16) { lapRemoteLID.set(l, uint32(v)) }

// LocalGID returns the sender's address.
func (l LAP) LocalGID() [16]byte { return [16]byte(l[lapLocalGID:]) }

// SetLocalGID sets LocalGID.
func (l LAP) SetLocalGID(g [16]byte) { copy(l[lapLocalGID:], g[:]) }

// RemoteGID returns the receiver's address.
func (l LAP) RemoteGID() [16]byte { return [16]byte(l[lapRemoteGID:]) }

// SetRemoteGID sets RemoteGID.
func (l LAP) SetRemoteGID(g [16]byte) { copy(l[lapRemoteGID:], g[:]) }

// FlowLabel returns the flow label.
func (l LAP) FlowLabel() uint32 { return lapFlowLabel.get(l) }

// SetFlowLabel sets FlowLabel.
func (l LAP) SetFlowLabel(v uint32) { lapFlowLabel.set(l, v) }

// TrafficClass returns the traffic class.
func (l LAP) TrafficClass() uint8 { return uint8(lapTrafficClass.get(l)) }

// SetTrafficClass sets TrafficClass.
func (l LAP) SetTrafficClass(v uint8) { lapTrafficClass.set(l, uint32(v)) }

// HopLimit returns the hop limit.
func (l LAP) HopLimit() uint8 { return uint8(lapHopLimit.get(l)) }

// SetHopLimit sets HopLimit.
func (l LAP) SetHopLimit(v uint8) { lapHopLimit.set(l, uint32(v)) }

// PacketRate returns the code of the packet rate.
func (l LAP) PacketRate() uint8 { return uint8(lapPacketRate.get(l)) }

// SetPacketRate sets PacketRate.
func (l LAP) SetPacketRate(v uint8) { lapPacketRate.set(l, uint32(v)) }

// SL returns the service level.
func (l LAP) SL() uint8 { return uint8(lapSL.get(l)) }

// SetSL sets SL.
func (l LAP) SetSL(v uint8) { lapSL.set(l, uint32(v)) }

// SubnetLocal reports whether the path stays in the subnet.
func (l LAP) SubnetLocal() bool { return lapSubnetLocal.getBool(l) }

// SetSubnetLocal sets SubnetLocal.
func (l LAP) SetSubnetLocal(v bool) { lapSubnetLocal.setBool(l, v) }

// AckTimeout returns the code of the local ACK timeout.
func (l LAP) AckTimeout() uint8 { return uint8(lapAckTimeout.get(l)) }

// SetAckTimeout sets AckTimeout.
func (l LAP) SetAckTimeout(v uint8) { lapAckTimeout.set(l, uint32(v)) }

// Private returns the private data of the applications.
func (l LAP) Private() []byte { return l[lapPrivate:CMSize] }

// APR answers a LAP (table 116).
type APR []byte

var (
	aprInfoLength = field{8, 0, 8}
	aprStatus     = field{9, 0, 8}
)

const (
	aprInfo    = 12
	aprPrivate = 84
)

// IsValid reports whether a can be read.
func (a APR) IsValid() bool { return len(a) >= CMSize }

// LocalCommID returns the communication ID that the sender chose.
func (a APR) LocalCommID() uint32 { return cmLocalID.get(a) }

// SetLocalCommID sets LocalCommID.
func (a APR) SetLocalCommID(v uint32) { cmLocalID.set(a, v) }

// RemoteCommID returns the communication ID that the receiver chose.
func (a APR) RemoteCommID() uint32 { return cmRemoteID.get(a) }

// SetRemoteCommID sets RemoteCommID.
func (a APR) SetRemoteCommID(v uint32) { cmRemoteID.set(a, v) }

// InfoLength returns the number of valid bytes in Info.
func (a APR) InfoLength() uint8 { return uint8(aprInfoLength.get(a)) }

// SetInfoLength sets InfoLength.
func (a APR) SetInfoLength(v uint8) { aprInfoLength.set(a, uint32(v)) }

// Status returns the result; 0 means accepted.
func (a APR) Status() uint8 { return uint8(aprStatus.get(a)) }

// SetStatus sets Status.
func (a APR) SetStatus(v uint8) { aprStatus.set(a, uint32(v)) }

// Info returns the value that the sender would have accepted.
func (a APR) Info() []byte { return a[aprInfo:aprPrivate] }

// Private returns the private data of the applications.
func (a APR) Private() []byte { return a[aprPrivate:CMSize] }
