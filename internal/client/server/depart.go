package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/registry"
)

// A NIC moves to another host while programs use it. Its programs let go of this daemon, and come back to the daemon of the other
// host (shim/protocol.h, "Moving"). Nothing but data passes between the two daemons.
//
//	Depart: signal ─▶ all programs asked to leave ─▶ Halt: state, Suspend ─▶ answers ─▶ all connections have ended
//	                                                                                          │
//	                        here again: Return, an Arrival ◀────────────────────────────────┤
//	                        elsewhere:  Over ◀──────────────────────────────────────────────┘
//
// Until then the NIC's queue pairs stay here, suspended, and answer requests with RNR NAKs (engine/suspend.go). They
// refer to the arena and to the memfd that the programs had, and write to neither.

// Migration moves NICs to other hosts while programs use them.
type Migration interface {
	// Migrate serves the request of a tool about a NIC, on its connection.
	Migrate(c *protocol.Conn, req *protocol.ControlRequest)
}

// Halter is the part of the engine that stops a NIC.
type Halter interface {
	Halt(ctx context.Context, f func() error) error
	Suspend(n *nic.NIC) error
	Continue(n *nic.NIC)
}

// MovedNIC is the state of a NIC that moves to another host. Its descriptors mean nothing.
type MovedNIC struct {
	NIC       NICState       `cbor:"1,keyasint,omitempty"`
	Processes []ProcessState `cbor:"2,keyasint,omitempty"`
}

// moves are the NICs that move away, or to this host.
type moves struct {
	mu       sync.Mutex
	departs  map[*registry.NIC]*Departure // guarded by mu
	arrivals map[*registry.NIC]*Arrival   // guarded by mu
}

// refuses returns why a new client cannot have a NIC that moves.
func (m *moves) refuses(n *registry.NIC, h *protocol.Hello) error {
	switch {
	case h.Flags&protocol.HelloReturn != 0, h.Kind == protocol.KindControl:
		return nil
	case h.Kind == protocol.KindUverbs, h.Kind == protocol.KindRDMACM:
		return nil // of a program that has not let go, see clients.process
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.departs[n] != nil || m.arrivals[n] != nil {
		return refusal(syscall.EBUSY, "NIC %s is moving from one host to another: start the program again when it has arrived", n.Name)
	}
	return nil
}

func (m *moves) departing(n *registry.NIC) *Departure {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.departs[n]
}

// add notes a departure; false: the NIC is moving already.
func (m *moves) add(d *Departure) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.departs[d.nic] != nil || m.arrivals[d.nic] != nil {
		return false
	}
	if m.departs == nil {
		m.departs = make(map[*registry.NIC]*Departure)
	}
	m.departs[d.nic] = d
	return true
}

func (m *moves) remove(d *Departure) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.departs, d.nic)
}

// replace makes an arrival of a departure: the NIC stays here.
func (m *moves) replace(d *Departure, a *Arrival) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.departs, d.nic)
	m.put(a)
}

// put notes an arrival. mu is held.
func (m *moves) put(a *Arrival) {
	if m.arrivals == nil {
		m.arrivals = make(map[*registry.NIC]*Arrival)
	}
	a.returnees = make(map[protocol.Token]*returnee)
	for i := range a.state.Processes {
		st := &a.state.Processes[i]
		a.returnees[st.Token] = &returnee{of: a, st: st, outcome: make(chan syscall.Errno, 1)}
	}
	m.arrivals[a.nic] = a
}

// A Departure is a NIC whose programs let go of this daemon.
type Departure struct {
	srv    *Server
	nic    *registry.NIC
	at     *listener
	halter Halter
	state  *MovedNIC
	steps  DepartSteps
	back   ArrivalSteps

	mu      sync.Mutex
	asked   map[*process]chan syscall.Errno // guarded by mu; programs that wait for the answer
	away    []*process                      // guarded by mu; programs that got the answer
	stuck   *process                        // guarded by mu; it cannot let go
	changed chan struct{}                   // guarded by mu; closed and replaced when the above changes
}

// DepartSteps are how long the steps of a departure took. From State on the programs stand still.
type DepartSteps struct {
	Ask   time.Duration // until all programs had asked to leave
	State time.Duration // until the state was taken
	Gone  time.Duration // until all programs had let go
}

// signalAgain is how long Depart waits before it signals a program again: its library may not have been ready.
const signalAgain = 100 * time.Millisecond

// Depart makes the programs that use a NIC let go of this daemon, and returns when all have. Then the NIC is suspended. If that
// fails, everything goes on as before, except programs that had let go already: they return here. Depart calls meanwhile when the NIC is
// suspended, while the programs let go.
func (s *Server) Depart(ctx context.Context, n *registry.NIC, h Halter, meanwhile func()) (*Departure, error) {
	at := s.listeners.of(n)
	if at == nil {
		return nil, fmt.Errorf("there is no listener for NIC %s", n.Name)
	}
	d := &Departure{srv: s, nic: n, at: at, halter: h, asked: make(map[*process]chan syscall.Errno), changed: make(chan struct{})}
	if !s.moves.add(d) {
		return nil, fmt.Errorf("NIC %s is moving already", n.Name)
	}
	step := stopwatch()
	err := at.uninvite() // a daemon that was killed leaves it
	if err == nil {
		err = d.call(ctx)
	}
	d.steps.Ask = step()
	if err == nil {
		err = d.freeze(ctx)
	}
	d.steps.State = step()
	if err != nil {
		d.answer(syscall.ECANCELED)
		s.moves.remove(d)
		return nil, err
	}
	d.answer(0)
	meanwhile()
	if err = d.awaitGone(ctx); err == nil {
		err = d.apart()
	}
	d.steps.Gone = step()
	if err != nil {
		return nil, errors.Join(err, d.Return(context.WithoutCancel(ctx)))
	}
	return d, nil
}

// stopwatch returns a function that returns the time since its last call.
func stopwatch() func() time.Duration {
	last := time.Now()
	return func() time.Duration {
		before := last
		last = time.Now()
		return last.Sub(before)
	}
}

// apart keeps this daemon from writing to the queues of the programs, which may be another daemon's soon.
func (d *Departure) apart() (err error) {
	perr := d.srv.loop.Do(func() {
		for _, p := range d.away {
			for ses := range p.sessions {
				err = errors.Join(err, ses.arena.Apart())
			}
		}
	})
	return errors.Join(err, perr)
}

// call signals all programs until they have asked to leave.
func (d *Departure) call(ctx context.Context) error {
	for {
		programs := d.srv.clients.using(d.nic)
		if len(programs) == 0 {
			return fmt.Errorf("no program uses NIC %s: it needs no live move", d.nic.Name)
		}
		var missing *process
		d.mu.Lock()
		changed := d.changed
		for _, p := range programs {
			if d.asked[p] == nil {
				missing = p
				break
			}
		}
		d.mu.Unlock()
		if missing == nil {
			return nil
		}
		if err := missing.signal(); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-time.After(signalAgain):
		case <-ctx.Done():
			return fmt.Errorf("%s (pid %d) does not let go of NIC %s: it may block signal %d, or be stopped: %w", missing.Program, missing.Pid, d.nic.Name, protocol.LeaveSignal, ctx.Err())
		}
	}
}

// signal asks the library in p to ask to leave.
func (p *process) signal() error {
	why := fmt.Errorf("%s (pid %d) cannot move", p.Program, p.Pid)
	if !p.moves || p.Pid <= 0 {
		return fmt.Errorf("%w: its library is older, or a Go program's, or its process number is not known here", why)
	}
	// The default action of the signal would end the program.
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid))
	if err != nil {
		return fmt.Errorf("%w: %w", why, err)
	}
	if !catches(string(status), protocol.LeaveSignal) {
		return fmt.Errorf("%w: it has changed what it does at signal %d", why, protocol.LeaveSignal)
	}
	fd := credentials.Pidfd(p.conn, &p.Caller)
	if fd < 0 {
		return fmt.Errorf("%w: it cannot be signalled", why)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, protocol.LeaveSignal, nil, 0); err != nil {
		return fmt.Errorf("%w: %w", why, os.NewSyscallError("pidfd_send_signal", err))
	}
	return nil
}

// catches reports whether a process with this status catches a signal.
func catches(status string, signal uint) bool {
	for line := range strings.Lines(status) {
		if mask, ok := strings.CutPrefix(line, "SigCgt:"); ok {
			bits, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
			return err == nil && bits>>(signal-1)&1 != 0
		}
	}
	return false
}

// note closes changed. mu is held.
func (d *Departure) note() {
	close(d.changed)
	d.changed = make(chan struct{})
}

// asksToLeave serves the program's request to let go of the daemon. It returns when that is decided.
func (p *process) asksToLeave() syscall.Errno {
	d := p.srv.moves.departing(p.nic)
	if d == nil {
		return syscall.EINVAL
	}
	decided := make(chan syscall.Errno, 1)
	d.mu.Lock()
	if d.asked[p] != nil || slices.Contains(d.away, p) {
		d.mu.Unlock()
		return syscall.EINVAL
	}
	d.asked[p] = decided
	d.note()
	d.mu.Unlock()
	if p.srv.moves.departing(p.nic) != d {
		d.answer(syscall.ECANCELED) // it was given up before this program was noted
	}
	e := syscall.ECANCELED
	p.srv.gate.Outside(func() {
		select {
		case e = <-decided:
		case <-p.srv.quit:
		}
	})
	return e
}

// stays serves the request of a program that cannot let go: it goes on here.
func (p *process) stays() syscall.Errno {
	d := p.srv.moves.departing(p.nic)
	if d == nil || !p.away.Load() {
		return syscall.EINVAL
	}
	p.away.Store(false)
	p.listener.remain(p.conn, false)
	d.mu.Lock()
	d.away = slices.DeleteFunc(d.away, func(o *process) bool { return o == p })
	d.stuck = p
	d.note()
	d.mu.Unlock()
	return 0
}

// remain sets whether a program stays a user when its connection ends.
func (d *listener) remain(c *protocol.Conn, so bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if g := d.users[c]; g != nil {
		g.away = so
	}
}

// answer decides for all programs that have asked.
func (d *Departure) answer(e syscall.Errno) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, decided := range d.asked {
		decided <- e
	}
	clear(d.asked)
}

// freeze takes the state, and suspends the NIC.
func (d *Departure) freeze(ctx context.Context) error {
	frozen, err := d.srv.Freeze(ctx)
	if err != nil {
		return err
	}
	defer frozen.Resume()
	return d.halter.Halt(ctx, func() error {
		programs := d.srv.clients.using(d.nic)
		st, err := frozen.moved(d, programs)
		if err != nil {
			return err
		}
		if err := d.halter.Suspend(d.nic.Device); err != nil {
			return err
		}
		d.state, d.away = st, programs
		for _, p := range programs {
			p.away.Store(true)
			p.listener.remain(p.conn, true)
		}
		return nil
	})
}

// moved returns the state of a NIC with these programs, all of which have asked to leave. It runs on the loop.
func (f *Frozen) moved(d *Departure, programs []*process) (*MovedNIC, error) {
	st := &MovedNIC{NIC: NICState{Name: d.nic.Name, Device: *d.nic.Device.Freeze()}}
	if d.nic.Manager != nil {
		st.NIC.Manager = d.nic.Manager.Freeze()
	}
	d.at.mu.Lock()
	users := maps.Clone(d.at.users)
	d.at.mu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range programs {
		if d.asked[p] == nil {
			return nil, fmt.Errorf("%s (pid %d) has opened NIC %s just now: try again", p.Program, p.Pid, d.nic.Name)
		}
		p.mu.Lock()
		for ses := range p.channels {
			ses.foresee(nil) // the client takes no more events by itself
		}
		p.mu.Unlock()
		ps, err := f.process(p, users[p.conn])
		if err != nil {
			return nil, err
		}
		p.takeBack(&ps)
		ps.strip()
		st.Processes = append(st.Processes, ps)
	}
	return st, nil
}

// takeBack takes the events that p has not read into its state.
func (p *process) takeBack(st *ProcessState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for ses := range p.sessions {
		for i := range st.Sessions {
			if st.Sessions[i].ID == ses.id {
				ses.dev.TakeBack(st.Sessions[i].Device)
			}
		}
	}
}

// strip removes what belongs to this host: descriptors, and where the program runs.
func (st *ProcessState) strip() {
	st.Conn.Socket, st.Files, st.Apart, st.Workload, st.Container = 0, nil, "", 0, ""
	st.Space.Memfd, st.Space.Foreign, st.Space.Mappings = 0, 0, nil
	for i := range st.Space.Files {
		f := &st.Space.Files[i] // the next daemon copies such memory
		*f = memory.SharedFileState{Writable: f.Writable}
	}
	for i := range st.Sessions {
		s := &st.Sessions[i]
		s.Conn.Socket, s.Arena, s.Doorbell, s.Async = 0, 0, 0, SinkState{}
		for h := range s.Sinks {
			s.Sinks[h] = SinkState{}
		}
		s.Mail.File, s.Mail.Served, s.Mail.Wanted = 0, 0, s.Mail.Wanted || s.Mail.File != 0
	}
	for i := range st.Channels {
		c := &st.Channels[i]
		c.Conn.Socket, c.Signal, c.Ahead = 0, SinkState{}, false
		c.Mail.File, c.Mail.Served, c.Mail.Wanted = 0, 0, c.Mail.Wanted || c.Mail.File != 0
	}
}

// awaitGone waits until all programs have let go.
func (d *Departure) awaitGone(ctx context.Context) error {
	for {
		d.mu.Lock()
		away, stuck, changed := slices.Clone(d.away), d.stuck, d.changed
		d.mu.Unlock()
		if stuck != nil {
			return fmt.Errorf("%s (pid %d) cannot let go of its memory: its threads cannot be stopped, or a device may use the memory", stuck.Program, stuck.Pid)
		}
		var left *process
		for _, p := range away {
			select {
			case <-p.gone:
			default:
				left = p
			}
		}
		if left == nil {
			return nil
		}
		select {
		case <-changed:
		case <-left.gone:
		case <-ctx.Done():
			return fmt.Errorf("%s (pid %d) takes long to let go: %w", left.Program, left.Pid, ctx.Err())
		}
	}
}

// Return makes the programs continue here: those that have let go come back. It returns when all have, or when ctx ends. Then
// those that have not are lost.
func (d *Departure) Return(ctx context.Context) error {
	d.mu.Lock()
	away := d.away
	d.away = nil
	d.mu.Unlock()
	st := &MovedNIC{NIC: d.state.NIC}
	for i := range d.state.Processes {
		if ps := &d.state.Processes[i]; slices.ContainsFunc(away, func(p *process) bool { return p.token == ps.Token }) {
			st.Processes = append(st.Processes, *ps)
		}
	}
	d.srv.forsake(away, nil)
	a := &Arrival{srv: d.srv, nic: d.nic, at: d.at, halter: d.halter, state: st, changed: make(chan struct{})}
	d.srv.moves.replace(d, a)
	if err := a.invite(); err != nil {
		d.srv.log.Error("the programs of a NIC cannot come back", "nic", d.nic.Name, "error", err)
	}
	err := a.Finish(ctx, func() error { return nil })
	d.back = a.steps
	return err
}

// State is the state of the NIC. Depart has returned.
func (d *Departure) State() *MovedNIC { return d.state }

// Steps are how long the departure took. Depart has returned.
func (d *Departure) Steps() DepartSteps { return d.steps }

// Back are how long the programs took to come back here. Return has returned.
func (d *Departure) Back() ArrivalSteps { return d.back }

// Gone is closed when the NIC is being removed from this host.
func (d *Departure) Gone() <-chan struct{} { return d.at.gone }

// Over removes what is left of the NIC's programs here: another host serves them.
func (d *Departure) Over() {
	d.mu.Lock()
	away := d.away
	d.away = nil
	d.mu.Unlock()
	d.srv.forsake(away, func() {
		if d.nic.Manager != nil {
			d.nic.Manager.Forsake()
		}
		d.halter.Continue(d.nic.Device)
	})
	d.srv.moves.remove(d)
}

// forsake ends the daemon's use of programs that another daemon serves, or that are restored from their state. Neither the
// programs nor their peers notice. Afterwards it calls the function then on the loop.
func (s *Server) forsake(programs []*process, then func()) {
	for _, p := range programs {
		p.away.Store(true) // its goroutines leave the state alone
	}
	err := s.loop.Do(func() {
		for _, p := range programs {
			for ses := range p.sessions {
				if ses.dev != nil {
					s.loop.Detach(ses.dev)
					ses.dev.CloseLost()
				}
			}
			if p.cm != nil {
				p.cm.Forsake()
			}
		}
		if then != nil {
			then()
		}
	})
	if err != nil {
		s.log.Error("cannot let go of a NIC's programs", "error", err)
	}
	s.loop.Do(func() {}) // the loop has finished the pass in which it may still use their memory
	for _, p := range programs {
		s.clients.remove(p)
		p.mu.Lock()
		p.ended = true
		sessions := slices.Collect(maps.Keys(p.sessions))
		clear(p.channels)
		p.mu.Unlock()
		for _, ses := range sessions {
			ses.doorbell.Close()
			ses.arena.Close()
			p.drop(ses)
			s.clients.removeSession(ses)
			ses.account.Refund(nic.SessionBill)
			ses.account.Drop()
		}
		p.space.Close()
		p.listener.remain(p.conn, false)
		p.listener.leave(p.conn)
	}
}

// QPs is the number of queue pairs.
func (st *MovedNIC) QPs() (n int) {
	for i := range st.Processes {
		for j := range st.Processes[i].Sessions {
			n += len(st.Processes[i].Sessions[j].Device.QPs)
		}
	}
	return n
}
