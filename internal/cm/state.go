package cm

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/wire"
)

// This file converts a Manager from and to data, so that another process can continue its connections; package state has the rules
// for the structs. A connection with an owner travels with its owner (FreezeConn, ThawConn), the others with the manager (Freeze,
// Thaw). Freezing changes nothing.
//
// The maps by the peer's ID, by its queue pair and by its question follow from the connections and are not part of the state.

// ManagerState is the state of a Manager, without the connections that travel with their owners.
type ManagerState struct {
	Next  uint32      `cbor:"1,keyasint,omitempty"` // the last communication ID
	Conns []ConnState `cbor:"2,keyasint,omitempty"`
}

// ConnState is the state of a Conn.
type ConnState struct {
	State              State     `cbor:"1,keyasint,omitempty"`
	LocalID            uint32    `cbor:"2,keyasint,omitempty"`
	RemoteID           uint32    `cbor:"3,keyasint,omitempty"`
	Service            uint64    `cbor:"4,keyasint,omitempty"`
	Path               PathState `cbor:"5,keyasint,omitempty"`
	Active             bool      `cbor:"6,keyasint,omitempty"`
	Transport          uint8     `cbor:"7,keyasint,omitempty"`
	LocalQPN           uint32    `cbor:"8,keyasint,omitempty"`
	RemoteQPN          uint32    `cbor:"9,keyasint,omitempty"`
	SQPSN              uint32    `cbor:"10,keyasint,omitempty"`
	RQPSN              uint32    `cbor:"11,keyasint,omitempty"`
	ResponderResources uint8     `cbor:"12,keyasint,omitempty"`
	InitiatorDepth     uint8     `cbor:"13,keyasint,omitempty"`
	RetryCount         uint8     `cbor:"14,keyasint,omitempty"`
	RNRRetryCount      uint8     `cbor:"15,keyasint,omitempty"`
	TID                uint64    `cbor:"16,keyasint,omitempty"`
	Retries            uint8     `cbor:"17,keyasint,omitempty"` // maximum repetitions of a message
	Patient            bool      `cbor:"18,keyasint,omitempty"` // the peer has sent an MRA
	Message            []byte    `cbor:"19,keyasint,omitempty"` // the MAD to repeat
	Left               uint8     `cbor:"20,keyasint,omitempty"` // remaining repetitions
	Tries              uint8     `cbor:"21,keyasint,omitempty"` // repetitions so far
	Interval           ib.Time   `cbor:"22,keyasint,omitempty"`
	Timed              bool      `cbor:"23,keyasint,omitempty"` // there is a deadline
	Deadline           ib.Time   `cbor:"24,keyasint,omitempty"` // relative to the snapshot
	SIDR               bool      `cbor:"25,keyasint,omitempty"` // a SIDR request, not a connection
	Linked             bool      `cbor:"26,keyasint,omitempty"` // WithQP finds it
}

// PathState is the state of a Path.
type PathState struct {
	SGID         ib.GID `cbor:"1,keyasint,omitempty"`
	DGID         ib.GID `cbor:"2,keyasint,omitempty"`
	MTU          uint8  `cbor:"3,keyasint,omitempty"`
	AckTimeout   uint8  `cbor:"4,keyasint,omitempty"`
	Rate         uint8  `cbor:"5,keyasint,omitempty"`
	TrafficClass uint8  `cbor:"6,keyasint,omitempty"`
	HopLimit     uint8  `cbor:"7,keyasint,omitempty"`
	FlowLabel    uint32 `cbor:"8,keyasint,omitempty"`
}

// Freeze returns the state of the manager with those connections for which with returns true.
func (m *Manager) Freeze(now ib.Time, with func(*Conn) bool) ManagerState {
	st := ManagerState{Next: m.next}
	for _, c := range m.conns {
		if with(c) {
			st.Conns = append(st.Conns, *m.FreezeConn(now, c))
		}
	}
	slices.SortFunc(st.Conns, func(a, b ConnState) int { return cmp.Compare(a.LocalID, b.LocalID) })
	return st
}

// FreezeConn returns the state of a connection, which may be Closed.
func (m *Manager) FreezeConn(now ib.Time, c *Conn) *ConnState {
	st := &ConnState{
		State: c.State, LocalID: c.LocalID, RemoteID: c.RemoteID, Service: c.Service, Path: PathState(c.Path), Active: c.Active,
		Transport: c.Transport, LocalQPN: c.LocalQPN, RemoteQPN: c.RemoteQPN, SQPSN: c.SQPSN, RQPSN: c.RQPSN,
		ResponderResources: c.ResponderResources, InitiatorDepth: c.InitiatorDepth, RetryCount: c.RetryCount, RNRRetryCount: c.RNRRetryCount,
		TID: c.tid, Retries: c.retries, Patient: c.patient, Message: slices.Clone(c.message), Left: c.left, Tries: c.tries, Interval: c.interval,
		SIDR:   c.State == SidrReqSent || c.State == SidrReqRcvd || m.questions[question{c.Path.DGID, c.RemoteID}] == c,
		Linked: m.byQP[peerQP{c.Path.DGID, c.RemoteQPN}] == c,
	}
	if c.deadline != 0 {
		st.Timed, st.Deadline = true, c.deadline-now
	}
	return st
}

// Thaw restores a manager from its state. The manager has no connections before. After an error it is of no use.
func (m *Manager) Thaw(now ib.Time, st *ManagerState) error {
	if len(m.conns) != 0 {
		return fmt.Errorf("the connection manager already has %d connections", len(m.conns))
	}
	m.next = st.Next
	for i := range st.Conns {
		switch c := &st.Conns[i]; c.State {
		case DreqSent, TimeWait:
			if _, err := m.ThawConn(now, c, nil); err != nil {
				return err
			}
		default: // it would stay forever
			return fmt.Errorf("connection %#x has state %d, but no owner", c.LocalID, c.State)
		}
	}
	return nil
}

// ThawConn restores a connection.
func (m *Manager) ThawConn(now ib.Time, st *ConnState, owner any) (*Conn, error) {
	if err := st.check(); err != nil {
		return nil, fmt.Errorf("connection %#x: %w", st.LocalID, err)
	}
	c := &Conn{
		Owner: owner, State: st.State, LocalID: st.LocalID, RemoteID: st.RemoteID, Service: st.Service, Path: Path(st.Path), Active: st.Active,
		Transport: st.Transport, LocalQPN: st.LocalQPN, RemoteQPN: st.RemoteQPN, SQPSN: st.SQPSN, RQPSN: st.RQPSN,
		ResponderResources: st.ResponderResources, InitiatorDepth: st.InitiatorDepth, RetryCount: st.RetryCount, RNRRetryCount: st.RNRRetryCount,
		tid: st.TID, retries: st.Retries, patient: st.Patient, left: st.Left, tries: st.Tries, interval: st.Interval,
	}
	if c.State == Closed {
		return c, nil
	}
	if err := m.register(c, st); err != nil {
		return nil, fmt.Errorf("connection %#x: %w", st.LocalID, err)
	}
	if st.Timed {
		// A deadline of 0 would mean never.
		m.await(c, slices.Clone(st.Message), max(now+max(st.Deadline, -maxLate), 1))
	}
	m.limit(c)
	return c, nil
}

// register enters a restored connection into the maps.
func (m *Manager) register(c *Conn, st *ConnState) error {
	byRemote, asked, byQP := remote{c.Path.DGID, c.RemoteID}, question{c.Path.DGID, c.RemoteID}, peerQP{c.Path.DGID, c.RemoteQPN}
	passive, sidr := !c.Active && !st.SIDR, !c.Active && st.SIDR
	switch {
	case m.conns[c.LocalID] != nil:
		return errors.New("there are two with this number")
	case passive && m.byRemote[byRemote] != nil, sidr && m.questions[asked] != nil:
		return fmt.Errorf("there are two with the peer's number %#x", c.RemoteID)
	case st.Linked && m.byQP[byQP] != nil:
		return fmt.Errorf("there are two with the peer's queue pair %#x", c.RemoteQPN)
	}
	m.conns[c.LocalID] = c
	if passive {
		m.byRemote[byRemote] = c
	}
	if sidr {
		m.questions[asked] = c
	}
	if st.Linked {
		m.linkQP(c)
	}
	return nil
}

// Drop removes a connection without a message and without an event, for example after a failed restoration.
func (m *Manager) Drop(c *Conn) {
	c.Owner = nil
	if m.conns[c.LocalID] == c {
		m.forget(c)
	}
}

// Forsake drops the connections for which with returns true.
func (m *Manager) Forsake(with func(*Conn) bool) {
	for _, c := range m.conns {
		if with(c) {
			m.Drop(c)
		}
	}
}

const (
	maxNumber = 1<<24 - 1 // of a queue pair, and a PSN
	// mostRetries is the largest number of repetitions in a REQ, and mostLeft that with an MRA.
	mostRetries = 15
	mostLeft    = 100
	// maxInterval is the largest interval that receiveREQ computes.
	maxInterval = 2*(ib.Time(4096)<<maxSpan) + ib.Time(4096)<<maxSpan
	// maxWait limits a deadline in the future, and maxLate one in the past.
	maxWait = 2 * maxInterval
	maxLate = ib.Time(3600e9)
)

// A stage says what a state must have.
type stage struct {
	active, passive bool // the sides that can be in it
	repeats         bool // has a message to repeat
	timed           bool // has a deadline
	sidr            bool // is a state of SIDR requests
}

var stages = [...]stage{
	Closed:      {active: true, passive: true},
	ReqSent:     {active: true, repeats: true, timed: true},
	RepRcvd:     {active: true},
	ReqRcvd:     {passive: true},
	RepSent:     {passive: true, repeats: true, timed: true},
	Established: {active: true, passive: true},
	DreqSent:    {active: true, passive: true, repeats: true, timed: true},
	DreqRcvd:    {active: true, passive: true},
	TimeWait:    {active: true, passive: true, timed: true},
	SidrReqSent: {active: true, repeats: true, timed: true, sidr: true},
	SidrReqRcvd: {passive: true, sidr: true},
}

// check returns why the state cannot be that of a connection.
func (st *ConnState) check() error {
	if int(st.State) >= len(stages) {
		return fmt.Errorf("unknown state %d", st.State)
	}
	s := stages[st.State]
	if st.State == TimeWait && st.SIDR { // an answered request, whose answer is kept
		s = stage{passive: true, repeats: true, timed: true, sidr: true}
	}
	switch {
	case st.LocalID == 0:
		return errors.New("no number")
	case st.Active && !s.active, !st.Active && !s.passive, st.SIDR != s.sidr && st.State != Closed:
		return fmt.Errorf("state %v of the wrong side or service", st.State)
	case max(st.LocalQPN, st.RemoteQPN, st.SQPSN, st.RQPSN) > maxNumber:
		return errors.New("a queue pair or a PSN of more than 24 bits")
	case st.Transport > wire.ServiceExtended:
		return fmt.Errorf("transport service %d", st.Transport)
	case st.Retries > mostRetries, st.Left > mostLeft:
		return fmt.Errorf("%d repetitions, %d of them left", st.Retries, st.Left)
	case st.Interval < minInterval, st.Interval > maxInterval:
		return fmt.Errorf("repetitions every %d ns", st.Interval)
	case st.Timed != s.timed, st.Deadline > maxWait:
		return fmt.Errorf("state %v with a deadline in %d ns", st.State, st.Deadline)
	case s.repeats != (st.Message != nil), s.repeats && (len(st.Message) != wire.MADSize || !wire.MAD(st.Message).IsCM()):
		return fmt.Errorf("state %v with a message of %d bytes", st.State, len(st.Message))
	case st.Linked && (st.RemoteQPN == 0 || st.State == Closed || st.State == TimeWait || st.SIDR):
		return fmt.Errorf("state %v with queue pair %#x", st.State, st.RemoteQPN)
	}
	return nil
}
