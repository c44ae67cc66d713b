package vhostuser

// Features of virtio that a device may offer, by their bits (virtio 1.1, sections 5.1.3 and 6).
const (
	NetCSum      = 1 << 0 // checksums may be left to the device
	NetGuestCSum = 1 << 1 // … and to the driver
	NetMTU       = 1 << 3
	NetGuestTSO4 = 1 << 7 // the driver takes large segments
	NetGuestTSO6 = 1 << 8
	NetGuestECN  = 1 << 9
	NetHostTSO4  = 1 << 11 // the device takes large segments
	NetHostTSO6  = 1 << 12
	NetHostECN   = 1 << 13
	NetMrgRxBuf  = 1 << 15 // a frame may lie in several chains
	NetMQ        = 1 << 22

	RingIndirect = 1 << 28
	RingEventIdx = 1 << 29
	Version1     = 1 << 32

	protocolFeatures = 1 << 30 // not virtio's: there are features of the protocol
)

// ringFeatures are those that every device here has.
const ringFeatures = RingIndirect | RingEventIdx | Version1 | protocolFeatures

// Features of the protocol.
const (
	protocolMQ       = 1 << 0
	protocolRARP     = 1 << 2
	protocolReplyAck = 1 << 3
	protocolMTU      = 1 << 4
	protocolReset    = 1 << 13
	protocolSlots    = 1 << 15

	offered = protocolMQ | protocolRARP | protocolReplyAck | protocolMTU | protocolReset | protocolSlots
)
