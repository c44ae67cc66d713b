package vhostuser

// Virtio features that a device may offer, by bit (virtio 1.1, sections 5.1.3 and 6).
const (
	NetCSum      = 1 << 0 // the device completes checksums
	NetGuestCSum = 1 << 1 // the driver completes checksums
	NetMTU       = 1 << 3
	NetGuestTSO4 = 1 << 7 // the driver accepts large segments
	NetGuestTSO6 = 1 << 8
	NetGuestECN  = 1 << 9
	NetHostTSO4  = 1 << 11 // the device accepts large segments
	NetHostTSO6  = 1 << 12
	NetHostECN   = 1 << 13
	NetMrgRxBuf  = 1 << 15 // a frame may use several chains
	NetMQ        = 1 << 22

	LogAll = 1 << 26 // vhost, not virtio: the device logs the pages that it writes

	RingIndirect = 1 << 28
	RingEventIdx = 1 << 29
	Version1     = 1 << 32

	protocolFeatures = 1 << 30 // vhost-user, not virtio: the protocol has features
)

// ringFeatures are the features that every device has, besides LogAll.
const ringFeatures = RingIndirect | RingEventIdx | Version1 | protocolFeatures

// Protocol features.
const (
	protocolMQ       = 1 << 0
	protocolLogFD    = 1 << 1 // LOG_SHMFD
	protocolRARP     = 1 << 2
	protocolReplyAck = 1 << 3
	protocolMTU      = 1 << 4
	protocolReset    = 1 << 13
	protocolSlots    = 1 << 15

	offered = protocolMQ | protocolLogFD | protocolRARP | protocolReplyAck | protocolMTU | protocolReset | protocolSlots
)
