package protocol

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

const (
	Magic      = 0x4d445256 // VRDMA_MAGIC
	Version    = 3          // VRDMA_PROTOCOL
	MaxMessage = 65536      // VRDMA_MAX_MESSAGE
	MaxFDs     = 4          // VRDMA_MAX_FDS
)

// OldestVersion is the oldest protocol that the daemon still supports. Changes since then:
//
//	3  completion queues are armed in the arena (an older client uses the command);
//	   threads that poll may sleep on a word of the doorbell page (an older client never does)
const OldestVersion = 2

// Kind is the kind of a connection: enum vrdma_kind.
type Kind uint32

const (
	KindProcess Kind = 1 // VRDMA_KIND_PROCESS
	KindUverbs  Kind = 2 // VRDMA_KIND_UVERBS
	KindRDMACM  Kind = 3 // VRDMA_KIND_RDMACM
	KindControl Kind = 4 // VRDMA_KIND_CONTROL
	KindNetlink Kind = 5 // VRDMA_KIND_NETLINK
	KindGuest   Kind = 6 // for tools: open the sockets for a virtual machine
)

// Op is the kind of a request: enum vrdma_op.
type Op uint32

const (
	OpCommand Op = 1 // VRDMA_OP_COMMAND
	OpSync    Op = 2 // VRDMA_OP_SYNC
	OpRoom    Op = 3 // VRDMA_OP_ROOM
	OpLeave   Op = 4 // VRDMA_OP_LEAVE
	OpStay    Op = 5 // VRDMA_OP_STAY
	OpReturn  Op = 6 // VRDMA_OP_RETURN
)

// Kinds of extent, enum vrdma_extent_kind, and their protection.
const (
	ExtentHole    = 0 // VRDMA_EXTENT_HOLE
	ExtentOwn     = 1 // VRDMA_EXTENT_OWN
	ExtentForeign = 2 // VRDMA_EXTENT_FOREIGN
	ExtentShared  = 3 // VRDMA_EXTENT_SHARED

	ProtRead  = 1 // VRDMA_PROT_READ
	ProtWrite = 2 // VRDMA_PROT_WRITE
)

// A Why is the reason why an extent is foreign: enum vrdma_why, bits 8 to 15 of Extent.Prot.
type Why uint8

// WhyShift is the position of the reason in Extent.Prot.
const WhyShift = 8 // VRDMA_WHY_SHIFT

// The reasons.
const (
	WhyUnknown  Why = 0
	WhyPinned   Why = 1  // VRDMA_WHY_PINNED
	WhyFile     Why = 2  // VRDMA_WHY_FILE
	WhyThread   Why = 3  // VRDMA_WHY_THREAD
	WhyRunning  Why = 4  // VRDMA_WHY_RUNNING
	WhyAsync    Why = 5  // VRDMA_WHY_ASYNC
	WhyMappings Why = 6  // VRDMA_WHY_MAPPINGS
	WhyKernel   Why = 7  // VRDMA_WHY_KERNEL
	WhySpecial  Why = 8  // VRDMA_WHY_SPECIAL
	WhyMemory   Why = 9  // VRDMA_WHY_MEMORY
	WhyStalled  Why = 10 // VRDMA_WHY_STALLED
	WhyCopied   Why = 11 // VRDMA_WHY_COPIED
)

// DescriptorShift is the position of a descriptor number, plus one, in Prot of a shared extent.
const DescriptorShift = 8 // VRDMA_DESCRIPTOR_SHIFT

// Bits of Welcome.ID of a PROCESS connection.
const (
	MapsShared      = 1 // VRDMA_MAPS_SHARED
	MapsDescriptors = 2 // VRDMA_MAPS_DESCRIPTORS
)

// String returns the reason in words.
func (w Why) String() string {
	if int(w) < len(whyText) {
		return whyText[w]
	}
	return "unknown"
}

var whyText = [...]string{
	WhyUnknown:  "unknown",
	WhyPinned:   "pinned by a device or the kernel",
	WhyFile:     "a file that the daemon does not map",
	WhyThread:   "a thread's stack",
	WhyRunning:  "threads could not be stopped",
	WhyAsync:    "the process has an io_uring or an AIO context",
	WhyMappings: "too many mappings",
	WhyKernel:   "the kernel offers no way to replace the pages safely",
	WhySpecial:  "a mapping that is never replaced",
	WhyMemory:   "no memory or no descriptor was free",
	WhyStalled:  "touching memory of this user stopped the daemon",
	WhyCopied:   "another region has the page as foreign memory",
}

// Kinds of descriptor in a reply: enum vrdma_fd_kind.
const (
	FDAsync = 1 // VRDMA_FD_ASYNC
	FDComp  = 2 // VRDMA_FD_COMP
	FDMail  = 3 // VRDMA_FD_MAIL
)

// Flags of a Hello: the client supports a mailbox; and answers in advance.
const (
	HelloMail  = 1 // VRDMA_HELLO_MAIL
	HelloAhead = 2 // VRDMA_HELLO_AHEAD
	// HelloFaults: faults follow the hello of a process.
	HelloFaults = 4 // VRDMA_HELLO_FAULTS
	// HelloMoves: the process can let go of the daemon, and come back. HelloReturn: it comes back, and the number of the device or
	// channel that this connection is for follows the hello.
	HelloMoves  = 8  // VRDMA_HELLO_MOVES
	HelloReturn = 16 // VRDMA_HELLO_RETURN
	LeaveSignal = 60 // VRDMA_LEAVE_SIGNAL
	// Arriving is appended to the socket's path. The file at that path exists while programs are expected to come back.
	Arriving = ".d/arriving" // VRDMA_ARRIVING
)

// Layout of a mailbox; protocol.h explains it.
const (
	MailState    = 0    // VRDMA_MAIL_STATE
	MailAskedLen = 4    // VRDMA_MAIL_ASKED_LEN
	MailReplyLen = 8    // VRDMA_MAIL_REPLY_LEN
	MailLeftLen  = 12   // VRDMA_MAIL_LEFT_LEN
	MailRequest  = 64   // VRDMA_MAIL_REQUEST
	MailLeft     = 1024 // VRDMA_MAIL_LEFT
	MailReply    = 2048 // VRDMA_MAIL_REPLY
	MailSize     = 4096 // VRDMA_MAIL_SIZE

	MailOpen     = 1  // VRDMA_MAIL_OPEN
	MailAsked    = 2  // VRDMA_MAIL_ASKED
	MailAsleep   = 4  // VRDMA_MAIL_ASLEEP
	MailAnswered = 8  // VRDMA_MAIL_ANSWERED
	MailSent     = 16 // VRDMA_MAIL_SENT

	MailAhead = 1 // VRDMA_MAIL_AHEAD
)

// Answers in advance, and the revisions after a mailbox; protocol.h explains them.
const (
	AheadCommand   = 24    // VRDMA_AHEAD_COMMAND
	AheadEvents    = 4096  // VRDMA_AHEAD_EVENTS
	AheadRevisions = 4160  // VRDMA_AHEAD_REVISIONS
	AheadIDs       = 1016  // VRDMA_AHEAD_IDS
	AheadSize      = 28672 // VRDMA_AHEAD_SIZE

	ShelfTaken  = 12288 // VRDMA_SHELF_TAKEN
	ShelfReady  = 12352 // VRDMA_SHELF_READY
	ShelfFrozen = 1     // VRDMA_SHELF_FROZEN
	ShelfSlot   = 16384 // VRDMA_SHELF_SLOT
	ShelfSlots  = 8     // VRDMA_SHELF_SLOTS
	ShelfStride = 1536  // VRDMA_SHELF_STRIDE
	ShelfReply  = 8     // VRDMA_SHELF_REPLY
)

// The doorbell page at the beginning of an arena; protocol.h explains it.
const (
	DoorbellBits    = 65536 // VRDMA_DB_BITS
	DoorbellArmed   = 0     // VRDMA_DB_ARMED
	DoorbellAny     = 64    // VRDMA_DB_ANY
	DoorbellSummary = 128   // VRDMA_DB_SUMMARY
	DoorbellWaiting = 256   // VRDMA_DB_WAITING
	DoorbellCPU     = 320   // VRDMA_DB_CPU
	DoorbellBitmap  = 4096  // VRDMA_DB_BITMAP
	DoorbellReady   = 12288 // VRDMA_DB_READY
	DoorbellSize    = 20480 // VRDMA_DB_SIZE

	WaitAnnounced = 1 // VRDMA_DB_ANNOUNCED
	WaitAsleep    = 2 // VRDMA_DB_ASLEEP
)

// The arm words of completion queues, after the doorbell page; protocol.h explains them.
const (
	ArmCQs       = 16384     // VRDMA_ARM_CQS
	ArmStride    = 64        // VRDMA_ARM_STRIDE
	ArmReady     = 1         // VRDMA_ARM_READY
	ArmSolicited = 2         // VRDMA_ARM_SOLICITED
	ArmAll       = 4         // VRDMA_ARM_ALL
	ArmRing      = 4         // VRDMA_ARM_RING
	ArmWoken     = 8         // VRDMA_ARM_WOKEN
	ArmUrgent    = 12        // VRDMA_ARM_URGENT
	ArmNone      = 1<<32 - 1 // VRDMA_ARM_NONE
	NotifyLook   = 1 << 31   // VRDMA_NOTIFY_LOOK
	ArmByCommand = 384       // VRDMA_ARM_BY_COMMAND
	ArmWords     = 20480     // VRDMA_ARM_WORDS
	SharedSize   = 1069056   // VRDMA_SHARED_SIZE: where rings start
)

// Sure commands are certain to succeed, so the client does not wait for them. See protocol.h.
const (
	SureLength   = 448   // VRDMA_SURE_LENGTH
	SureHandleAt = 452   // VRDMA_SURE_HANDLE_AT
	SureValue    = 512   // VRDMA_SURE_VALUE
	SureMask     = 640   // VRDMA_SURE_MASK
	SureMax      = 128   // VRDMA_SURE_MAX
	SureBits     = 1024  // VRDMA_SURE_BITS
	SureHandles  = 24576 // VRDMA_SURE_HANDLES
)

// Sizes of the fixed parts of messages.
const (
	HelloSize   = 160 // sizeof(struct vrdma_hello)
	ReturnSize  = 8   // sizeof(struct vrdma_return)
	MaxFaults   = 512 // VRDMA_MAX_FAULTS
	WelcomeSize = 248 // sizeof(struct vrdma_welcome)
	RequestSize = 16  // sizeof(struct vrdma_request)
	ExtentSize  = 24  // sizeof(struct vrdma_extent)
	ReplySize   = 16  // sizeof(struct vrdma_reply)
	StoreSize   = 16  // sizeof(struct vrdma_store)
	FDSize      = 16  // sizeof(struct vrdma_fd)
	AheadHeader = 24  // sizeof(struct vrdma_ahead)
)

// Token identifies a process to the daemon.
type Token [16]byte

var order = binary.NativeEndian

// ErrMalformed is returned, wrapped, for a message that contradicts its own fields.
var ErrMalformed = errors.New("malformed message")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}

// Hello is struct vrdma_hello, the first message of a connection.
type Hello struct {
	Magic    uint32
	Protocol uint32
	Kind     Kind
	Flags    uint32
	Token    Token
	VNIC     string // at most 31 bytes
	Label    string // at most 31 bytes
	Program  string // at most 63 bytes
	Faults   string // what shall fail on purpose, less than MaxFaults bytes; see HelloFaults
	Name     uint32 // what comes back, see HelloReturn
}

// Append appends the encoded h; strings that are too long are cut.
func (h *Hello) Append(b []byte) []byte {
	b = order.AppendUint32(b, h.Magic)
	b = order.AppendUint32(b, h.Protocol)
	b = order.AppendUint32(b, uint32(h.Kind))
	b = order.AppendUint32(b, h.Flags)
	b = append(b, h.Token[:]...)
	b = appendText(b, h.VNIC, 32)
	b = appendText(b, h.Label, 32)
	b = appendText(b, h.Program, 64)
	if h.Flags&HelloFaults != 0 {
		b = append(append(b, h.Faults...), 0)
	}
	if h.Flags&HelloReturn != 0 {
		b = order.AppendUint32(b, h.Name)
	}
	return b
}

// ParseHello decodes a hello. A longer one comes from a newer protocol; only the known part is decoded, and its version tells the rest.
func ParseHello(b []byte) (Hello, error) {
	if len(b) < HelloSize {
		return Hello{}, malformed("a hello has %d bytes, got %d", HelloSize, len(b))
	}
	h := Hello{
		Magic:    order.Uint32(b[0:]),
		Protocol: order.Uint32(b[4:]),
		Kind:     Kind(order.Uint32(b[8:])),
		Flags:    order.Uint32(b[12:]),
		Token:    Token(b[16:32]),
		VNIC:     text(b[32:64]),
		Label:    text(b[64:96]),
		Program:  text(b[96:160]),
	}
	switch rest := b[HelloSize:]; {
	case h.Flags&HelloReturn != 0 && h.Flags&HelloFaults != 0, h.Flags&HelloReturn != 0 && len(rest) < 4:
		return Hello{}, malformed("a hello of a client that comes back has a name, and nothing else")
	case h.Flags&HelloReturn != 0:
		h.Name = order.Uint32(rest)
	case h.Flags&HelloFaults != 0:
		h.Faults = text(rest)
	}
	if h.Magic != Magic {
		return Hello{}, malformed("magic %#x, want %#x", h.Magic, uint32(Magic))
	}
	return h, nil
}

// Welcome is struct vrdma_welcome, the daemon's answer to a Hello.
type Welcome struct {
	Magic     uint32
	Protocol  uint32
	Error     int32
	NumFDs    uint32
	Token     Token
	ArenaSize uint64
	RdevMajor uint32
	RdevMinor uint32
	DaemonPid int32
	// ID depends on the kind of connection. RDMACM: the channel's number in MIGRATE_ID. PROCESS: the bits MapsShared and
	// MapsDescriptors. UVERBS: the device's number.
	ID   uint32
	Text string // at most 191 bytes
}

// Append appends the encoded w.
func (w *Welcome) Append(b []byte) []byte {
	b = order.AppendUint32(b, w.Magic)
	b = order.AppendUint32(b, w.Protocol)
	b = order.AppendUint32(b, uint32(w.Error))
	b = order.AppendUint32(b, w.NumFDs)
	b = append(b, w.Token[:]...)
	b = order.AppendUint64(b, w.ArenaSize)
	b = order.AppendUint32(b, w.RdevMajor)
	b = order.AppendUint32(b, w.RdevMinor)
	b = order.AppendUint32(b, uint32(w.DaemonPid))
	b = order.AppendUint32(b, w.ID)
	return appendText(b, w.Text, 192)
}

// ParseWelcome reads a welcome.
func ParseWelcome(b []byte) (Welcome, error) {
	if len(b) < WelcomeSize {
		return Welcome{}, malformed("a welcome has %d bytes, got %d", WelcomeSize, len(b))
	}
	w := Welcome{
		Magic:     order.Uint32(b[0:]),
		Protocol:  order.Uint32(b[4:]),
		Error:     int32(order.Uint32(b[8:])),
		NumFDs:    order.Uint32(b[12:]),
		Token:     Token(b[16:32]),
		ArenaSize: order.Uint64(b[32:]),
		RdevMajor: order.Uint32(b[40:]),
		RdevMinor: order.Uint32(b[44:]),
		DaemonPid: int32(order.Uint32(b[48:])),
		ID:        order.Uint32(b[52:]),
		Text:      text(b[56:248]),
	}
	if w.Magic != Magic {
		return Welcome{}, malformed("magic %#x, want %#x", w.Magic, uint32(Magic))
	}
	return w, nil
}

// appendText appends s, NUL padded to size bytes, with at least one NUL.
func appendText(b []byte, s string, size int) []byte {
	n := min(len(s), size-1)
	b = append(b, s[:n]...)
	return append(b, make([]byte, size-n)...)
}

func text(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}
