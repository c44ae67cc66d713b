package wire

// REQ requests a connection (table 106).
type REQ []byte

var (
	reqLocalQKey             = field{28, 0, 32}
	reqLocalQPN              = field{32, 0, 24}
	reqResponderResources    = field{35, 0, 8}
	reqLocalEECN             = field{36, 0, 24}
	reqInitiatorDepth        = field{39, 0, 8}
	reqRemoteEECN            = field{40, 0, 24}
	reqRemoteResponseTimeout = field{43, 0, 5}
	reqTransportService      = field{43, 5, 2}
	reqFlowControl           = field{43, 7, 1}
	reqStartingPSN           = field{44, 0, 24}
	reqLocalResponseTimeout  = field{47, 0, 5}
	reqRetryCount            = field{47, 5, 3}
	reqPKey                  = field{48, 0, 16}
	reqPathMTU               = field{50, 0, 4}
	reqRDCExists             = field{50, 4, 1}
	reqRNRRetryCount         = field{50, 5, 3}
	reqMaxCMRetries          = field{51, 0, 4}
	reqSRQ                   = field{51, 4, 1}
	reqExtendedTransport     = field{51, 5, 3}
)

const (
	reqServiceID   = 8
	reqLocalCAGUID = 16
	reqPrimary     = 52
	reqAlternate   = 96
	reqPrivate     = 140
)

// IsValid reports whether r can be read.
func (r REQ) IsValid() bool { return len(r) >= CMSize }

// LocalCommID returns the communication ID that the sender chose.
func (r REQ) LocalCommID() uint32 { return cmLocalID.get(r) }

// SetLocalCommID sets LocalCommID.
func (r REQ) SetLocalCommID(v uint32) { cmLocalID.set(r, v) }

// ServiceID returns the requested service; rdma_cm encodes the port space and the port in it.
func (r REQ) ServiceID() uint64 { return get64(r, reqServiceID) }

// SetServiceID sets ServiceID.
func (r REQ) SetServiceID(v uint64) { put64(r, reqServiceID, v) }

// LocalCAGUID returns the GUID of the sender's channel adapter.
func (r REQ) LocalCAGUID() uint64 { return get64(r, reqLocalCAGUID) }

// SetLocalCAGUID sets LocalCAGUID.
func (r REQ) SetLocalCAGUID(v uint64) { put64(r, reqLocalCAGUID, v) }

// LocalQKey returns the queue key, for RD only.
func (r REQ) LocalQKey() uint32 { return reqLocalQKey.get(r) }

// SetLocalQKey sets LocalQKey.
func (r REQ) SetLocalQKey(v uint32) { reqLocalQKey.set(r, v) }

// LocalQPN returns the number of the sender's queue pair.
func (r REQ) LocalQPN() uint32 { return reqLocalQPN.get(r) }

// SetLocalQPN sets LocalQPN.
func (r REQ) SetLocalQPN(v uint32) { reqLocalQPN.set(r, v) }

// ResponderResources returns how many outstanding READs and atomics the sender accepts.
func (r REQ) ResponderResources() uint8 { return uint8(reqResponderResources.get(r)) }

// SetResponderResources sets ResponderResources.
func (r REQ) SetResponderResources(v uint8) { reqResponderResources.set(r, uint32(v)) }

// LocalEECN returns the EE context number, used only by RD.
func (r REQ) LocalEECN() uint32 { return reqLocalEECN.get(r) }

// SetLocalEECN sets LocalEECN.
func (r REQ) SetLocalEECN(v uint32) { reqLocalEECN.set(r, v) }

// InitiatorDepth returns how many outstanding READs and atomics the sender wants to issue.
func (r REQ) InitiatorDepth() uint8 { return uint8(reqInitiatorDepth.get(r)) }

// SetInitiatorDepth sets InitiatorDepth.
func (r REQ) SetInitiatorDepth(v uint8) { reqInitiatorDepth.set(r, uint32(v)) }

// RemoteEECN returns the EE context number, used only by RD.
func (r REQ) RemoteEECN() uint32 { return reqRemoteEECN.get(r) }

// SetRemoteEECN sets RemoteEECN.
func (r REQ) SetRemoteEECN(v uint32) { reqRemoteEECN.set(r, v) }

// RemoteResponseTimeout returns the code of the time limit for the receiver's answer.
func (r REQ) RemoteResponseTimeout() uint8 { return uint8(reqRemoteResponseTimeout.get(r)) }

// SetRemoteResponseTimeout sets RemoteResponseTimeout.
func (r REQ) SetRemoteResponseTimeout(v uint8) { reqRemoteResponseTimeout.set(r, uint32(v)) }

// Transport services in a REQ.
const (
	ServiceRC       = 0
	ServiceUC       = 1
	ServiceRD       = 2
	ServiceExtended = 3 // see ExtendedTransport
)

// TransportService returns one of the four values above.
func (r REQ) TransportService() uint8 { return uint8(reqTransportService.get(r)) }

// SetTransportService sets TransportService.
func (r REQ) SetTransportService(v uint8) { reqTransportService.set(r, uint32(v)) }

// FlowControl reports whether the sender understands end-to-end credits.
func (r REQ) FlowControl() bool { return reqFlowControl.getBool(r) }

// SetFlowControl sets FlowControl.
func (r REQ) SetFlowControl(v bool) { reqFlowControl.setBool(r, v) }

// StartingPSN returns the first PSN that the receiver of this message sends.
func (r REQ) StartingPSN() uint32 { return reqStartingPSN.get(r) }

// SetStartingPSN sets StartingPSN.
func (r REQ) SetStartingPSN(v uint32) { reqStartingPSN.set(r, v) }

// LocalResponseTimeout returns the code of the time in which the sender answers.
func (r REQ) LocalResponseTimeout() uint8 { return uint8(reqLocalResponseTimeout.get(r)) }

// SetLocalResponseTimeout sets LocalResponseTimeout.
func (r REQ) SetLocalResponseTimeout(v uint8) { reqLocalResponseTimeout.set(r, uint32(v)) }

// RetryCount returns how often the receiver retries.
func (r REQ) RetryCount() uint8 { return uint8(reqRetryCount.get(r)) }

// SetRetryCount sets RetryCount.
func (r REQ) SetRetryCount(v uint8) { reqRetryCount.set(r, uint32(v)) }

// PKey returns the partition key.
func (r REQ) PKey() uint16 { return uint16(reqPKey.get(r)) }

// SetPKey sets PKey.
func (r REQ) SetPKey(v uint16) { reqPKey.set(r, uint32(v)) }

// PathMTU returns the MTU as a code: 1 is 256 bytes, 5 is 4096.
func (r REQ) PathMTU() uint8 { return uint8(reqPathMTU.get(r)) }

// SetPathMTU sets PathMTU.
func (r REQ) SetPathMTU(v uint8) { reqPathMTU.set(r, uint32(v)) }

// RDCExists reports whether an RD channel exists.
func (r REQ) RDCExists() bool { return reqRDCExists.getBool(r) }

// SetRDCExists sets RDCExists.
func (r REQ) SetRDCExists(v bool) { reqRDCExists.setBool(r, v) }

// RNRRetryCount returns how often the receiver retries after an RNR NAK.
func (r REQ) RNRRetryCount() uint8 { return uint8(reqRNRRetryCount.get(r)) }

// SetRNRRetryCount sets RNRRetryCount.
func (r REQ) SetRNRRetryCount(v uint8) { reqRNRRetryCount.set(r, uint32(v)) }

// MaxCMRetries returns how often the sender repeats this message without an answer.
func (r REQ) MaxCMRetries() uint8 { return uint8(reqMaxCMRetries.get(r)) }

// SetMaxCMRetries sets MaxCMRetries.
func (r REQ) SetMaxCMRetries(v uint8) { reqMaxCMRetries.set(r, uint32(v)) }

// SRQ reports whether the sender uses a shared receive queue.
func (r REQ) SRQ() bool { return reqSRQ.getBool(r) }

// SetSRQ sets SRQ.
func (r REQ) SetSRQ(v bool) { reqSRQ.setBool(r, v) }

// ExtendedTransport returns 1 for XRC.
func (r REQ) ExtendedTransport() uint8 { return uint8(reqExtendedTransport.get(r)) }

// SetExtendedTransport sets ExtendedTransport.
func (r REQ) SetExtendedTransport(v uint8) { reqExtendedTransport.set(r, uint32(v)) }

// Primary returns the primary path.
func (r REQ) Primary() REQPath { return REQPath(r[reqPrimary:reqAlternate]) }

// Alternate returns the alternate path.
func (r REQ) Alternate() REQPath { return REQPath(r[reqAlternate:reqPrivate]) }

// Private returns the private data of the applications.
func (r REQ) Private() []byte { return r[reqPrivate:CMSize] }

// REQPath is one of the two paths in a REQ.
type REQPath []byte

var (
	pathLocalLID     = field{0, 0, 16}
	pathRemoteLID    = field{2, 0, 16}
	pathFlowLabel    = field{36, 0, 20}
	pathPacketRate   = field{39, 2, 6}
	pathTrafficClass = field{40, 0, 8}
	pathHopLimit     = field{41, 0, 8}
	pathSL           = field{42, 0, 4}
	pathSubnetLocal  = field{42, 4, 1}
	pathAckTimeout   = field{43, 0, 5}
)

const (
	pathLocalGID  = 4
	pathRemoteGID = 20
)

// IsValid reports whether p can be read.
func (p REQPath) IsValid() bool { return len(p) >= reqAlternate-reqPrimary }

// LocalLID returns the LID, 0xffff on RoCE.
func (p REQPath) LocalLID() uint16 { return uint16(pathLocalLID.get(p)) }

// SetLocalLID sets LocalLID.
func (p REQPath) SetLocalLID(v uint16) { pathLocalLID.set(p, uint32(v)) }

// RemoteLID returns the LID, 0xffff on RoCE.
func (p REQPath) RemoteLID() uint16 { return uint16(pathRemoteLID.get(p)) }

// SetRemoteLID sets RemoteLID.
func (p REQPath) SetRemoteLID(v uint16) { pathRemoteLID.set(p, uint32(v)) }

// LocalGID returns the sender's address.
func (p REQPath) LocalGID() [16]byte { return [16]byte(p[pathLocalGID:]) }

// SetLocalGID sets LocalGID.
func (p REQPath) SetLocalGID(g [16]byte) { copy(p[pathLocalGID:], g[:]) }

// RemoteGID returns the receiver's address.
func (p REQPath) RemoteGID() [16]byte { return [16]byte(p[pathRemoteGID:]) }

// SetRemoteGID sets RemoteGID.
func (p REQPath) SetRemoteGID(g [16]byte) { copy(p[pathRemoteGID:], g[:]) }

// FlowLabel returns the flow label.
func (p REQPath) FlowLabel() uint32 { return pathFlowLabel.get(p) }

// SetFlowLabel sets FlowLabel.
func (p REQPath) SetFlowLabel(v uint32) { pathFlowLabel.set(p, v) }

// PacketRate returns the code of the packet rate.
func (p REQPath) PacketRate() uint8 { return uint8(pathPacketRate.get(p)) }

// SetPacketRate sets PacketRate.
func (p REQPath) SetPacketRate(v uint8) { pathPacketRate.set(p, uint32(v)) }

// TrafficClass returns the traffic class.
func (p REQPath) TrafficClass() uint8 { return uint8(pathTrafficClass.get(p)) }

// SetTrafficClass sets TrafficClass.
func (p REQPath) SetTrafficClass(v uint8) { pathTrafficClass.set(p, uint32(v)) }

// HopLimit returns the hop limit.
func (p REQPath) HopLimit() uint8 { return uint8(pathHopLimit.get(p)) }

// SetHopLimit sets HopLimit.
func (p REQPath) SetHopLimit(v uint8) { pathHopLimit.set(p, uint32(v)) }

// SL returns the service level.
func (p REQPath) SL() uint8 { return uint8(pathSL.get(p)) }

// SetSL sets SL.
func (p REQPath) SetSL(v uint8) { pathSL.set(p, uint32(v)) }

// SubnetLocal reports whether the path stays in the subnet.
func (p REQPath) SubnetLocal() bool { return pathSubnetLocal.getBool(p) }

// SetSubnetLocal sets SubnetLocal.
func (p REQPath) SetSubnetLocal(v bool) { pathSubnetLocal.setBool(p, v) }

// AckTimeout returns the code of the local ACK timeout.
func (p REQPath) AckTimeout() uint8 { return uint8(pathAckTimeout.get(p)) }

// SetAckTimeout sets AckTimeout.
func (p REQPath) SetAckTimeout(v uint8) { pathAckTimeout.set(p, uint32(v)) }
