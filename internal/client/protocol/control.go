package protocol

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// ControlRequest is a tool's request on a CONTROL connection. At the program socket a user can query only its own programs (status, trace,
// connections). Queries about all programs, capture and stop are for the daemon's user and root at the control socket (place.go).
//
//	{"op":"status"}               answered by one Status
//	{"op":"trace","label":"L"}    answered by TraceRecords until the tool hangs up
//	{"op":"capture"}              answered by a ControlReply, then by the bytes of a
//	                              capture file until the tool hangs up
//	{"op":"connections","label":"L"}  answered by one ConnectionCount
//	{"op":"nics"}                 answered by one NICList
//	{"op":"top"}                  answered by one Top
//	{"op":"usage","since":T,"tenant":"N"}  answered by one UsageReport
//	{"op":"stop"}                 answered by one ControlReply; the daemon then ends
//	{"op":"reload"}               answered by one ControlReply with lines
//	{"op":"drain","off":B}        answered by one ControlReply
//	{"op":"move","pid":P,"loop":N}  answered by one ControlReply
//	{"op":"objects"}              answered by a ControlReply; then one request about declared
//	                              objects follows, and its answers (package control)
//	{"op":"hand over"}            answered by a ControlReply; then a message with a descriptor
//	                              for the conversation of two daemons follows (package handover)
//	{"op":"migrate","move":M,"nic":N}  for leave answered by one Migration with the state; before arrive
//	                              a Migration with the state follows; answered by one Migration
//	{"op":"upgrade","program":P}  answered by one Upgrade: the daemon starts P to take over
type ControlRequest struct {
	Op    string `json:"op"`
	Label string `json:"label,omitempty"` // trace: only programs with this label; empty: all
	// For usage: records that end after this time, of this tenant; zero and empty select all.
	Since  time.Time `json:"since,omitzero"`
	Tenant string    `json:"tenant,omitempty"`
	// For capture: record packets of virtual networks with their outer headers.
	Outer bool `json:"outer,omitempty"`
	// For capture: record packets from or to these addresses only, and from or to this NIC's; at most Snap bytes of each. End is a
	// random text: the message after the last one of the file begins with it, and has a CaptureEnd.
	Peers []netip.Addr `json:"peers,omitempty"`
	NIC   string       `json:"nic,omitempty"`
	Snap  int          `json:"snap,omitempty"`
	End   string       `json:"end,omitempty"`
	// For drain: admit programs again.
	Off bool `json:"off,omitempty"`
	// For move: the process whose sessions move, and their next loop.
	Pid  int `json:"pid,omitempty"`
	Loop int `json:"loop,omitempty"`
	// For migrate: what to do with NIC, a declared one (Leave, Stay, Arrive), and for how long at most.
	Move   string        `json:"move,omitempty"`
	Within time.Duration `json:"within,omitempty"`
	// For upgrade: the path of the next daemon's program.
	Program string `json:"program,omitempty"`
}

// Upgrade is the outcome of a live upgrade.
type Upgrade struct {
	Error string `json:"error,omitempty"`
	Pid   int    `json:"pid,omitempty"` // of the daemon that continues
	// Blackout is how long programs were not served.
	Blackout time.Duration `json:"blackout,omitempty"`
}

// What a request to migrate does with a NIC: its programs let go of this daemon, continue here, or come from another host.
const (
	MoveLeave  = "leave"
	MoveStay   = "stay"
	MoveArrive = "arrive"
)

// Migration is an answer to a request to migrate a NIC, or its state.
type Migration struct {
	Error    string `json:"error,omitempty"`
	State    []byte `json:"state,omitempty"` // sealed
	Programs int    `json:"programs,omitempty"`
	QPs      int    `json:"qps,omitempty"`
}

// CaptureEnd counts the packets of a capture.
type CaptureEnd struct {
	Packets uint64 `json:"packets"`
	LeftOut uint64 `json:"leftOut"` // the reader was too slow
}

// Operations of a ControlRequest.
const (
	ControlStatus   = "status"
	ControlTrace    = "trace"
	ControlCapture  = "capture"
	ControlCount    = "connections"
	ControlNICs     = "nics"
	ControlTop      = "top"
	ControlUsage    = "usage"
	ControlStop     = "stop"
	ControlObjects  = "objects"
	ControlHandOver = "hand over"
	ControlUpgrade  = "upgrade"
	ControlReload   = "reload"
	ControlDrain    = "drain"
	ControlMove     = "move"
	ControlMigrate  = "migrate"
)

// ControlReply acknowledges a request or contains its error. The stream of a trace begins with one.
type ControlReply struct {
	Error string `json:"error,omitempty"`
	// Lines are the answer to a reload, for people.
	Lines []string `json:"lines,omitempty"`
}

// Status is the content of `vrdma status`.
type Status struct {
	Error    string `json:"error,omitempty"`
	Version  string `json:"version"`
	Protocol int    `json:"protocol"`
	Pid      int    `json:"pid"`
	Socket   string `json:"socket"`
	// Control is the path of the control socket, if the caller may use it.
	Control string    `json:"control,omitempty"`
	Started time.Time `json:"started"`
	// NIC is the name of the described virtual NIC, and Network its network; empty: the daemon has no default NIC.
	NIC      string          `json:"nic"`
	Network  string          `json:"network"`
	Device   DeviceStatus    `json:"device"`
	Sessions []SessionStatus `json:"sessions"`
	// Connections are the rdma_cm identifiers.
	Connections []ConnectionStatus `json:"connections"`
	// Peers are the other hosts that programs talk with, for callers that may see all.
	Peers    []PeerStatus      `json:"peers,omitempty"`
	Counters map[string]uint64 `json:"counters"`
	// NICs are all NICs that the caller may see, if there are others than the default one.
	NICs []NICStatus `json:"nics,omitempty"`
	// Budgets are the resources that users hold, and their limits.
	Budgets []BudgetStatus `json:"budgets,omitempty"`
	// Store is the state of a store that several hosts share, for callers that may see all; nil: the store is the daemon's own.
	Store *StoreStatus `json:"store,omitempty"`
	// Programs are the served processes, for callers that may see all. Draining: new ones are refused.
	Programs []ProgramStatus `json:"programs,omitempty"`
	Draining bool            `json:"draining,omitempty"`
	// Loops are the daemon's loops, and Moves how many sessions have moved between them, for callers that may see all.
	Loops []LoopStatus `json:"loops,omitempty"`
	Moves uint64       `json:"moves,omitempty"`
	// Audit and Usage are the paths of the audit log and of the usage file, for callers that may see all; empty: none is kept.
	Audit string `json:"audit,omitempty"`
	Usage string `json:"usage,omitempty"`
	// Refused counts commands that were not supported, by name.
	Refused map[string]uint64 `json:"refused,omitempty"`
}

// LoopStatus is a loop of the daemon.
type LoopStatus struct {
	Number   int           `json:"number"`
	Used     bool          `json:"used"` // new sessions may come to it
	Sessions int           `json:"sessions"`
	Busy     time.Duration `json:"busy"` // time that it has worked for sessions
	// Across counts packets that have arrived at the loop for queue pairs of other loops. It hands those from other hosts over.
	Across uint64 `json:"across"`
	// AcrossLost counts packets that others have handed over to the loop and that did not fit into its queue.
	AcrossLost uint64 `json:"acrossLost"`
}

// ProgramStatus is a served process.
type ProgramStatus struct {
	NIC     string `json:"nic"`
	Pid     int    `json:"pid"`
	UID     int    `json:"uid"`
	Program string `json:"program"`
	// Container is the container or virtual machine that has the NIC; empty: none.
	Container string `json:"container,omitempty"`
}

// StoreStatus is the state of the store.
type StoreStatus struct {
	Name  string `json:"name"`
	State string `json:"state"` // in step, away, strange; own: a file that only this daemon has
	// Heard is the time of its last answer.
	Heard time.Time `json:"heard"`
	Why   string    `json:"why,omitempty"` // why it is not in step
	// Problems are entries that were ignored.
	Problems []string `json:"problems,omitempty"`
	// Generation is the store revision of the last declared change that is in effect on this host.
	Generation int64 `json:"generation,omitempty"`
}

// NICSocket is a NIC that the caller may open, and its socket.
type NICSocket struct {
	Name      string   `json:"name"`
	Network   string   `json:"network"`
	Addresses []string `json:"addresses"`
	Socket    string   `json:"socket"`
	Programs  int      `json:"programs"` // number of programs that use it
}

// NICList is the list of NICs that a caller may open.
type NICList struct {
	Error string      `json:"error,omitempty"`
	NICs  []NICSocket `json:"nics"`
}

// BudgetStatus is the usage of one kind of resource by a user or a group of users.
type BudgetStatus struct {
	Whose string `json:"whose"`
	Kind  string `json:"kind"`
	Used  uint64 `json:"used"`
	Limit uint64 `json:"limit"`
}

// DeviceStatus describes the device and its port.
type DeviceStatus struct {
	Name      string      `json:"name"`
	NodeGUID  string      `json:"node_guid"`
	State     string      `json:"state"`
	LinkLayer string      `json:"link_layer"`
	MTU       int         `json:"mtu"`
	GIDs      []GIDStatus `json:"gids"`
}

// GIDStatus is a row of the GID table.
type GIDStatus struct {
	Index  int    `json:"index"`
	GID    string `json:"gid"`
	Type   string `json:"type"`
	NetDev string `json:"netdev"`
}

// SessionStatus is one open of the device.
type SessionStatus struct {
	ID       uint64      `json:"id"`
	NIC      string      `json:"nic"`
	Pid      int         `json:"pid"`
	UID      int         `json:"uid"`
	Program  string      `json:"program"`
	Label    string      `json:"label,omitempty"`
	Opened   time.Time   `json:"opened"`
	Commands uint64      `json:"commands"`
	Loop     int         `json:"loop,omitempty"` // the number of the loop that serves it
	Objects  ObjectCount `json:"objects"`
	MRBytes  uint64      `json:"mr_bytes"`
	// Memory covers all regions; Regions are the first thousand.
	Memory  MemoryUsage    `json:"memory"`
	Regions []RegionStatus `json:"regions,omitempty"`
	QPs     []QPStatus     `json:"qps"`
}

// MemoryUsage counts registered bytes by access: in the daemon's own pages, in shared memory that the daemon maps too, or by
// copying, with the reasons.
type MemoryUsage struct {
	Own     uint64   `json:"own_bytes"`
	Shared  uint64   `json:"shared_bytes"`
	Foreign uint64   `json:"foreign_bytes"`
	Why     []string `json:"why_foreign,omitempty"`
}

// UsageOf returns a MemoryUsage. why has a bit for each Why.
func UsageOf(own, shared, foreign uint64, why uint32) MemoryUsage {
	u := MemoryUsage{Own: own, Shared: shared, Foreign: foreign}
	for w := range Why(32) {
		if why&(1<<w) != 0 {
			u.Why = append(u.Why, w.String())
		}
	}
	return u
}

// String returns the usage in one line.
func (u MemoryUsage) String() string {
	var parts []string
	for _, p := range []struct {
		n    uint64
		name string
	}{{u.Own, "own"}, {u.Shared, "shared"}, {u.Foreign, "foreign"}} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%s=%d", p.name, p.n))
		}
	}
	if len(u.Why) > 0 {
		parts = append(parts, "("+strings.Join(u.Why, "; ")+")")
	}
	return strings.Join(parts, " ")
}

// RegionStatus is one memory region.
type RegionStatus struct {
	Handle uint32 `json:"handle"`
	Length uint64 `json:"length"`
	MemoryUsage
}

// ObjectCount is the number of a session's objects of each kind.
type ObjectCount struct {
	PDs      int `json:"pds"`
	MRs      int `json:"mrs"`
	MWs      int `json:"mws"`
	CQs      int `json:"cqs"`
	QPs      int `json:"qps"`
	SRQs     int `json:"srqs"`
	AHs      int `json:"ahs"`
	Channels int `json:"channels"`
}

// QPStatus is one queue pair.
type QPStatus struct {
	Num         uint32 `json:"num"`
	Type        string `json:"type"`
	State       string `json:"state"`
	DestQPN     uint32 `json:"dest_qpn"`
	DestGID     string `json:"dest_gid,omitempty"`
	Outstanding uint32 `json:"outstanding"`
	// Aside says that its memory is reached by copying only, because touching it stopped the daemon.
	Aside bool `json:"aside,omitempty"`
}

// ConnectionCount is the number of RDMA connections of the programs with a label. The query resets the number for ended programs.
type ConnectionCount struct {
	Error string `json:"error,omitempty"`
	RDMA  uint64 `json:"rdma"`
}

// ConnectionStatus is one rdma_cm identifier: a listener, or a connection in some state.
type ConnectionStatus struct {
	NIC       string `json:"nic"`
	Pid       int    `json:"pid"`
	Program   string `json:"program"`
	PortSpace string `json:"port_space"`
	State     string `json:"state"`
	Local     string `json:"local,omitempty"`
	Remote    string `json:"remote,omitempty"`
	QPN       uint32 `json:"qpn,omitempty"`
	RemoteQPN uint32 `json:"remote_qpn,omitempty"`
	Groups    int    `json:"groups,omitempty"`
}

// PeerStatus is another host.
type PeerStatus struct {
	Address string `json:"address"`
	Network string `json:"network,omitempty"` // its virtual network; empty: the hosts' own
	Kind    string `json:"kind"`              // vrdma, foreign, or asking (not known yet)
	Version string `json:"version,omitempty"`
	// Features are the extensions in use with a vrdma host.
	Features []string `json:"features,omitempty"`
	// Problem describes a problem of the path that an operator should know.
	Problem string `json:"problem,omitempty"`
}

// TraceRecord is one command of a program, or the opening or closing of the device (Command "open" and "close").
type TraceRecord struct {
	Time     time.Time     `json:"time"`
	Duration time.Duration `json:"duration_ns"`
	Session  uint64        `json:"session"`
	Pid      int           `json:"pid"`
	Program  string        `json:"program"`
	Label    string        `json:"label,omitempty"`
	Command  string        `json:"command"`
	Args     string        `json:"args,omitempty"`
	Result   string        `json:"result,omitempty"` // the returned values, on success
	Errno    int           `json:"errno,omitempty"`
	Error    string        `json:"error,omitempty"`   // the errno's name
	Refused  bool          `json:"refused,omitempty"` // the command is not supported
	Lost     uint64        `json:"lost,omitempty"`    // records dropped before this one: the reader was too slow
}

// Commands of records that are not verbs commands.
const (
	TraceOpen  = "open"
	TraceClose = "close"
)

const (
	pieceMore = '+'
	pieceLast = '.'
	// maxDocument limits the memory for a peer's document.
	maxDocument = 64 << 20
	pieceSize   = 32 << 10
)

// SendJSON sends v as one document: each packet begins with '+' if more follow, and with '.' if it is the last.
func (c *Conn) SendJSON(v any) error {
	doc, err := json.Marshal(v)
	if err != nil {
		return err
	}
	packet := make([]byte, 0, min(len(doc), pieceSize)+1)
	for {
		piece, mark := doc, byte(pieceLast)
		if len(piece) > pieceSize {
			piece, mark = doc[:pieceSize], pieceMore
		}
		doc = doc[len(piece):]
		if err := c.WriteMessage(append(append(packet[:0], mark), piece...)); err != nil {
			return err
		}
		if mark == pieceLast {
			return nil
		}
	}
}

// maxRequest limits the size of a ControlRequest, all pieces together, because any client can send one.
const maxRequest = 4 << 10

// ReceiveRequest receives a tool's request.
func (c *Conn) ReceiveRequest(req *ControlRequest) error {
	return c.receiveJSON(req, make([]byte, maxRequest+1), maxRequest)
}

// ReceiveJSON receives one document into v.
func (c *Conn) ReceiveJSON(v any) error {
	return c.receiveJSON(v, make([]byte, MaxMessage), maxDocument)
}

// ReceiveJSONUpTo receives one document of at most most bytes into v. Before it holds more, it calls grow with the new number of
// bytes, and returns grow's error.
func (c *Conn) ReceiveJSONUpTo(v any, most int, grow func(bytes int) error) error {
	return c.receive(v, make([]byte, pieceSize+1), most, grow)
}

// receiveJSON receives a document of at most most bytes, in pieces that fit into buf.
func (c *Conn) receiveJSON(v any, buf []byte, most int) error {
	return c.receive(v, buf, most, func(int) error { return nil })
}

func (c *Conn) receive(v any, buf []byte, most int, grow func(int) error) error {
	var doc []byte
	for {
		n, fds, err := c.ReadMessage(buf)
		if err != nil {
			return err
		}
		CloseFDs(fds)
		if err := grow(len(doc) + n - 1); err != nil {
			return err
		}
		doc = append(doc, buf[1:n]...)
		switch {
		case len(doc) > most:
			return malformed("a document of more than %d bytes", most)
		case buf[0] == pieceMore:
		case buf[0] == pieceLast:
			if err := json.Unmarshal(doc, v); err != nil {
				return fmt.Errorf("%w: %w", ErrMalformed, err)
			}
			return nil
		default:
			return malformed("a document's piece begins with %q", buf[0])
		}
	}
}
