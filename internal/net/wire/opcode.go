package wire

// Opcode is the first byte of a BTH: the upper three bits are the transport service,
// the lower five the operation (IBA 9.2.1, table 38).
type Opcode uint8

// The opcodes of the services that vrdma offers, and the congestion notification packet
// (annex A17.9.3).
const (
	RCSendFirst     Opcode = 0x00
	RCSendMiddle    Opcode = 0x01
	RCSendLast      Opcode = 0x02
	RCSendLastImm   Opcode = 0x03
	RCSendOnly      Opcode = 0x04
	RCSendOnlyImm   Opcode = 0x05
	RCWriteFirst    Opcode = 0x06
	RCWriteMiddle   Opcode = 0x07
	RCWriteLast     Opcode = 0x08
	RCWriteLastImm  Opcode = 0x09
	RCWriteOnly     Opcode = 0x0a
	RCWriteOnlyImm  Opcode = 0x0b
	RCReadRequest   Opcode = 0x0c
	RCReadRespFirst Opcode = 0x0d
	RCReadRespMid   Opcode = 0x0e
	RCReadRespLast  Opcode = 0x0f
	RCReadRespOnly  Opcode = 0x10
	RCAck           Opcode = 0x11
	RCAtomicAck     Opcode = 0x12
	RCCompareSwap   Opcode = 0x13
	RCFetchAdd      Opcode = 0x14
	RCSendLastInv   Opcode = 0x16
	RCSendOnlyInv   Opcode = 0x17
	RCFlush         Opcode = 0x1c
	RCAtomicWrite   Opcode = 0x1d

	UCSendFirst    Opcode = 0x20
	UCSendMiddle   Opcode = 0x21
	UCSendLast     Opcode = 0x22
	UCSendLastImm  Opcode = 0x23
	UCSendOnly     Opcode = 0x24
	UCSendOnlyImm  Opcode = 0x25
	UCWriteFirst   Opcode = 0x26
	UCWriteMiddle  Opcode = 0x27
	UCWriteLast    Opcode = 0x28
	UCWriteLastImm Opcode = 0x29
	UCWriteOnly    Opcode = 0x2a
	UCWriteOnlyImm Opcode = 0x2b

	UDSendOnly    Opcode = 0x64
	UDSendOnlyImm Opcode = 0x65

	CNP Opcode = 0x81
)

// Service is a transport service.
type Service uint8

// Services; Congestion stands for CNPs, which belong to no transport service.
const (
	RC Service = iota + 1
	UC
	UD
	Congestion
)

// Operation is the operation of a message, whatever the position of the packet in it.
type Operation uint8

// Operations.
const (
	Send Operation = iota + 1
	Write
	ReadRequest
	ReadResponse
	Ack
	AtomicAck
	CompareSwap
	FetchAdd
	Flush
	AtomicWrite
	Notify
)

// Position is the position of a packet in its message.
type Position uint8

// Positions form a bit set, so that Only is both the first and the last.
const (
	Middle Position = 0
	First  Position = 1
	Last   Position = 2
	Only   Position = First | Last
)

// Headers is a set of extended transport headers. Their order in a packet is the order of the bits.
type Headers uint16

// Headers that may follow a BTH.
const (
	HasDETH Headers = 1 << iota
	HasFETH
	HasRETH
	HasAtomicETH
	HasAETH
	HasAtomicAckETH
	HasImmDt
	HasIETH
	numHeaders = iota
)

// headerSize has the header sizes, indexed by bit number.
var headerSize = [numHeaders]uint8{
	DETHSize, FETHSize, RETHSize, AtomicETHSize, AETHSize, AtomicAckETHSize, ImmDtSize, IETHSize,
}

// anyPayload stands for payloads of 0 to MaxPayload bytes.
const anyPayload = -1

// Format describes the packets of an opcode.
type Format struct {
	row
	size   int               // size of all headers, including the BTH
	offset [numHeaders]uint8 // offsets indexed by bit number; zero: header not present
}

// row is a row of the opcode table.
type row struct {
	Opcode    Opcode
	Service   Service
	Operation Operation
	Position  Position
	Headers   Headers
	payload   int // exact number of bytes, or anyPayload
	Name      string
}

// Size returns the size of a packet's headers, including the BTH.
func (f *Format) Size() int { return f.size }

// HasPayload reports whether the packet carries a message's data.
func (f *Format) HasPayload() bool { return f.payload == anyPayload }

var rows = [...]row{
	{RCSendFirst, RC, Send, First, 0, anyPayload, "RC Send First"},
	{RCSendMiddle, RC, Send, Middle, 0, anyPayload, "RC Send Middle"},
	{RCSendLast, RC, Send, Last, 0, anyPayload, "RC Send Last"},
	{RCSendLastImm, RC, Send, Last, HasImmDt, anyPayload, "RC Send Last Immediate"},
	{RCSendOnly, RC, Send, Only, 0, anyPayload, "RC Send Only"},
	{RCSendOnlyImm, RC, Send, Only, HasImmDt, anyPayload, "RC Send Only Immediate"},
	{RCWriteFirst, RC, Write, First, HasRETH, anyPayload, "RC RDMA Write First"},
	{RCWriteMiddle, RC, Write, Middle, 0, anyPayload, "RC RDMA Write Middle"},
	{RCWriteLast, RC, Write, Last, 0, anyPayload, "RC RDMA Write Last"},
	{RCWriteLastImm, RC, Write, Last, HasImmDt, anyPayload, "RC RDMA Write Last Immediate"},
	{RCWriteOnly, RC, Write, Only, HasRETH, anyPayload, "RC RDMA Write Only"},
	{RCWriteOnlyImm, RC, Write, Only, HasRETH | HasImmDt, anyPayload, "RC RDMA Write Only Immediate"},
	{RCReadRequest, RC, ReadRequest, Only, HasRETH, 0, "RC RDMA Read Request"},
	{RCReadRespFirst, RC, ReadResponse, First, HasAETH, anyPayload, "RC RDMA Read Response First"},
	{RCReadRespMid, RC, ReadResponse, Middle, 0, anyPayload, "RC RDMA Read Response Middle"},
	{RCReadRespLast, RC, ReadResponse, Last, HasAETH, anyPayload, "RC RDMA Read Response Last"},
	{RCReadRespOnly, RC, ReadResponse, Only, HasAETH, anyPayload, "RC RDMA Read Response Only"},
	{RCAck, RC, Ack, Only, HasAETH, 0, "RC Acknowledge"},
	{RCAtomicAck, RC, AtomicAck, Only, HasAETH | HasAtomicAckETH, 0, "RC Atomic Acknowledge"},
	{RCCompareSwap, RC, CompareSwap, Only, HasAtomicETH, 0, "RC Compare Swap"},
	{RCFetchAdd, RC, FetchAdd, Only, HasAtomicETH, 0, "RC Fetch Add"},
	{RCSendLastInv, RC, Send, Last, HasIETH, anyPayload, "RC Send Last Invalidate"},
	{RCSendOnlyInv, RC, Send, Only, HasIETH, anyPayload, "RC Send Only Invalidate"},
	{RCFlush, RC, Flush, Only, HasFETH | HasRETH, 0, "RC Flush"},
	{RCAtomicWrite, RC, AtomicWrite, Only, HasRETH, 8, "RC Atomic Write"},

	{UCSendFirst, UC, Send, First, 0, anyPayload, "UC Send First"},
	{UCSendMiddle, UC, Send, Middle, 0, anyPayload, "UC Send Middle"},
	{UCSendLast, UC, Send, Last, 0, anyPayload, "UC Send Last"},
	{UCSendLastImm, UC, Send, Last, HasImmDt, anyPayload, "UC Send Last Immediate"},
	{UCSendOnly, UC, Send, Only, 0, anyPayload, "UC Send Only"},
	{UCSendOnlyImm, UC, Send, Only, HasImmDt, anyPayload, "UC Send Only Immediate"},
	{UCWriteFirst, UC, Write, First, HasRETH, anyPayload, "UC RDMA Write First"},
	{UCWriteMiddle, UC, Write, Middle, 0, anyPayload, "UC RDMA Write Middle"},
	{UCWriteLast, UC, Write, Last, 0, anyPayload, "UC RDMA Write Last"},
	{UCWriteLastImm, UC, Write, Last, HasImmDt, anyPayload, "UC RDMA Write Last Immediate"},
	{UCWriteOnly, UC, Write, Only, HasRETH, anyPayload, "UC RDMA Write Only"},
	{UCWriteOnlyImm, UC, Write, Only, HasRETH | HasImmDt, anyPayload, "UC RDMA Write Only Immediate"},

	{UDSendOnly, UD, Send, Only, HasDETH, anyPayload, "UD Send Only"},
	{UDSendOnlyImm, UD, Send, Only, HasDETH | HasImmDt, anyPayload, "UD Send Only Immediate"},

	{CNP, Congestion, Notify, Only, 0, cnpReserved, "CNP"},
}

// cnpReserved is the length of the zeros that follow the BTH of a CNP.
const cnpReserved = 16

var (
	formats  [len(rows)]Format
	byOpcode = index() // nil for unknown opcodes
)

// index computes offsets and sizes and returns the table by opcode.
func index() (t [256]*Format) {
	for i, r := range rows {
		f := &formats[i]
		f.row = r
		f.size = BTHSize
		for h := range numHeaders {
			if f.Headers&(1<<h) != 0 {
				f.offset[h] = uint8(f.size)
				f.size += int(headerSize[h])
			}
		}
		t[f.Opcode] = f
	}
	return t
}

// Format returns the format of o, or nil for an opcode that vrdma does not know.
func (o Opcode) Format() *Format { return byOpcode[o] }

// String returns o's name as in Wireshark.
func (o Opcode) String() string {
	if f := byOpcode[o]; f != nil {
		return f.Name
	}
	return "Unknown Opcode"
}
