package daemon

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"time"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/client/server"
	"vrdma.dev/vrdma/internal/device/registry"
	"vrdma.dev/vrdma/internal/state"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// A NIC moves to another host with its programs: docs/explanation/live-migration.md. The daemons do not talk to each other. The
// state passes from one to the other in a file, authenticated with a secret that the hosts share, and the store says who has
// the NIC.
//
//	source   leave: programs let go, NIC suspended ─▶ state …… placement on the other host ─▶ forget
//	                                                     │  └─ stay: programs come back
//	next     arrive: state checked ─▶ programs have come ─▶ placement taken ─▶ NIC continues

// migrations are the NICs that move. It implements server.Migration.
type migrations struct {
	d  *daemon
	mu sync.Mutex
	of map[tenant.Key]*leaving // guarded by mu
}

// leaving is a NIC whose programs have let go of this daemon.
type leaving struct {
	departure *server.Departure
	revision  int64
	ended     chan struct{} // closed when the NIC is on another host, or stays
	end       func()
	plug      func() error // makes the interface again that a container had
}

// movedState is what the file from vrdma nic leave contains, authenticated.
type movedState struct {
	NIC      string           `cbor:"1,keyasint,omitempty"` // TENANT/NAME
	From     string           `cbor:"2,keyasint,omitempty"` // host
	Revision int64            `cbor:"3,keyasint,omitempty"` // of the placement
	Counted  string           `cbor:"4,keyasint,omitempty"` // the NIC's counters, as control.CounterKeeper has them
	State    *server.MovedNIC `cbor:"5,keyasint,omitempty"`
}

// Limits of a move.
const (
	// leaveTime is how long programs may take to let go, and returnTime how long to come back, unless the request says.
	leaveTime  = 10 * time.Second
	returnTime = time.Minute
	// awayTime is how long a NIC that has left may be on no other host. Then its programs are lost, and what the daemon keeps for
	// them is released.
	awayTime = 10 * time.Minute
)

// sealMagic begins a sealed state.
const sealMagic = "vrdma-nic\n"

// seal encodes a state, and authenticates it.
func seal(version string, st *movedState, secret []byte) ([]byte, error) {
	body, err := state.Write(state.Own(version), st)
	if err != nil {
		return nil, err
	}
	return bytes.Join([][]byte{[]byte(sealMagic), sumOf(body, secret), body}, nil), nil
}

// unseal decodes what seal has encoded, if it has the secret.
func unseal(b, secret []byte) (*movedState, error) {
	rest, ok := bytes.CutPrefix(b, []byte(sealMagic))
	if !ok || len(rest) < sha256.Size {
		return nil, errors.New("this is not the state of a NIC")
	}
	sum, body := rest[:sha256.Size], rest[sha256.Size:]
	if !hmac.Equal(sum, sumOf(body, secret)) {
		return nil, errors.New("the state of the NIC is damaged, or is of hosts with another store")
	}
	st := new(movedState)
	if _, err := state.Read(body, st); err != nil {
		return nil, err
	}
	if st.State == nil {
		return nil, errors.New("the state of the NIC is empty")
	}
	return st, nil
}

func sumOf(body, secret []byte) []byte {
	m := hmac.New(sha256.New, secret)
	m.Write([]byte(sealMagic))
	m.Write(body)
	return m.Sum(nil)
}

// Migrate implements server.Migration.
func (m *migrations) Migrate(c *protocol.Conn, req *protocol.ControlRequest) {
	var answer protocol.Migration
	k, n, err := m.nic(req.NIC)
	if err == nil {
		switch req.Move {
		case protocol.MoveLeave:
			answer, err = m.leave(k, n, within(req, leaveTime))
		case protocol.MoveStay:
			err = m.stay(k, within(req, returnTime))
		case protocol.MoveArrive:
			var sent protocol.Migration
			if err = c.ReceiveJSON(&sent); err == nil {
				answer, err = m.arrive(k, n, sent.State, within(req, returnTime))
			}
		default:
			err = fmt.Errorf("this daemon does not know the move %.40q", req.Move)
		}
	}
	if err != nil {
		answer = protocol.Migration{Error: err.Error()}
	}
	c.SendJSON(answer)
}

// within is how long a move may take.
func within(req *protocol.ControlRequest, usual time.Duration) time.Duration {
	if req.Within > 0 {
		return req.Within
	}
	return usual
}

// nic finds a declared NIC.
func (m *migrations) nic(path string) (tenant.Key, *registry.NIC, error) {
	for _, n := range m.d.nics.All() {
		if k := n.Key(); k != (tenant.Key{}) && k.Path() == path {
			return k, n, nil
		}
	}
	return tenant.Key{}, nil, fmt.Errorf("there is no NIC %.100q on this host", path)
}

// leave makes the programs of a NIC let go, and returns the NIC's state.
func (m *migrations) leave(k tenant.Key, n *registry.NIC, within time.Duration) (answer protocol.Migration, err error) {
	d := m.d
	secret, err := d.plane.MoveSecret()
	if err != nil {
		return answer, err
	}
	if d.provisioner.IsGuest(k) {
		return answer, fmt.Errorf("NIC %s is a virtual machine's: it cannot move while that runs", k.Path())
	}
	revision, end, err := d.plane.Leave(k)
	if err != nil {
		return answer, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	// CRIU cannot dump the interface. The next host makes another one. The kernel takes a while to remove it.
	var withdrawn chan func() error
	dep, err := d.server.Depart(ctx, n, d.engine, func() {
		withdrawn = make(chan func() error, 1)
		go func() { withdrawn <- d.provisioner.Withdraw(k) }()
	})
	if err != nil {
		defer end()
		if withdrawn != nil {
			err = errors.Join(err, (<-withdrawn)())
		}
		return answer, err
	}
	gone := time.Now()
	l := &leaving{departure: dep, revision: revision, ended: make(chan struct{}), end: end, plug: <-withdrawn}
	st := &movedState{NIC: k.Path(), From: d.host, Revision: revision, Counted: d.plane.Counted(k), State: dep.State()}
	answer.Programs, answer.QPs = len(st.State.Processes), st.State.QPs()
	if answer.State, err = seal(d.Version, st, secret); err != nil {
		defer end()
		return answer, errors.Join(err, dep.Return(ctx), l.plug())
	}
	m.mu.Lock()
	if m.of == nil {
		m.of = make(map[tenant.Key]*leaving)
	}
	m.of[k] = l
	m.mu.Unlock()
	go m.follow(k, l)
	took := dep.Steps()
	d.log.Info("the programs of a NIC have let go: it waits to be on another host", "nic", k.Path(), "programs", answer.Programs, "queue pairs", answer.QPs,
		"asked", took.Ask, "state", took.State, "let go", took.Gone, "interface and seal", time.Since(gone))
	return answer, nil
}

// follow forgets the programs of a NIC when it is on another host.
func (m *migrations) follow(k tenant.Key, l *leaving) {
	ctx, cancel := context.WithTimeout(context.Background(), awayTime)
	defer cancel()
	moved := make(chan error, 1)
	go func() { moved <- m.d.plane.AwaitMoved(ctx, k) }()
	select {
	case <-l.ended:
		return
	case <-l.departure.Gone():
	case err := <-moved:
		if err != nil {
			m.d.log.Warn("a NIC that has left was not restored on another host in time: its programs are lost", "nic", k.Path(), "error", err)
			m.d.plane.Keep(k, l.revision) // otherwise another host has just taken it, or will not accept the state either
		}
	}
	if m.take(k, l) {
		l.departure.Over()
		m.awaitUnused(k)
		l.end()
		m.d.log.Info("a NIC has left for good", "nic", k.Path())
	}
}

// awaitUnused waits until the interface of a container is gone, which follows its last program. Otherwise the plane would disconnect
// it, as that of a NIC which another host has taken.
func (m *migrations) awaitUnused(k tenant.Key) {
	const every, most = 10 * time.Millisecond, 5 * time.Second
	for range most / every {
		if len(m.d.provisioner.Users(k)) == 0 {
			return
		}
		time.Sleep(every)
	}
}

// take removes a NIC that has left; false: it was taken already.
func (m *migrations) take(k tenant.Key, l *leaving) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if l == nil || m.of[k] != l {
		return false
	}
	delete(m.of, k)
	close(l.ended)
	return true
}

// stay makes the programs of a NIC that has left come back.
func (m *migrations) stay(k tenant.Key, within time.Duration) error {
	return m.stayAt(k, 0, within)
}

// stayAt is stay for a state of this revision; 0: of any.
func (m *migrations) stayAt(k tenant.Key, revision int64, within time.Duration) error {
	m.mu.Lock()
	l := m.of[k]
	m.mu.Unlock()
	if l == nil || revision != 0 && l.revision != revision {
		return fmt.Errorf("NIC %s is not leaving this host", k.Path())
	}
	if err := m.d.plane.Keep(k, l.revision); err != nil {
		return err
	}
	if !m.take(k, l) {
		return fmt.Errorf("NIC %s is not leaving this host", k.Path())
	}
	defer l.end()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	err := errors.Join(l.departure.Return(ctx), l.plug())
	took := l.departure.Back()
	m.d.log.Info("a NIC stays on this host", "nic", k.Path(), "error", err,
		"waited", took.First, "came back", took.Programs, "restored", took.Restore, "continued", took.Continue)
	return err
}

// arrive continues a NIC with a state from another host, when its programs have come.
func (m *migrations) arrive(k tenant.Key, n *registry.NIC, sealed []byte, within time.Duration) (answer protocol.Migration, err error) {
	d := m.d
	secret, err := d.plane.MoveSecret()
	if err != nil {
		return answer, err
	}
	st, err := unseal(sealed, secret)
	if err != nil {
		return answer, err
	}
	if st.NIC != k.Path() {
		return answer, fmt.Errorf("this is the state of NIC %s, not of %s", st.NIC, k.Path())
	}
	if st.From == d.host { // it comes back to where it was
		answer.Programs, answer.QPs = len(st.State.Processes), st.State.QPs()
		return answer, m.stayAt(k, st.Revision, within)
	}
	end, err := d.plane.Expect(k, st.From, st.Revision)
	if err != nil {
		return answer, err
	}
	defer end()
	a, err := d.server.Arrive(n, st.State, d.engine)
	if err != nil {
		return answer, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if err := a.Finish(ctx, func() error { return d.plane.Take(k, st.From, st.Revision, st.Counted) }); err != nil {
		return answer, err
	}
	answer.Programs, answer.QPs = len(st.State.Processes), st.State.QPs()
	took := a.Steps()
	d.log.Info("a NIC has arrived from another host", "nic", k.Path(), "from", st.From, "programs", answer.Programs, "queue pairs", answer.QPs,
		"waited", took.First, "came back", took.Programs, "restored", took.Restore, "placement", took.Commit, "continued", took.Continue)
	return answer, nil
}
