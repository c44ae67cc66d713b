package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/device/fault"
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/net/roce"
	"vrdma.dev/vrdma/internal/state"
)

const movingVNI = 5

// newMovingWorld makes three machines in an overlay network, and three NICs with a program each. If move is set, the
// NICs move between the machines.
func newMovingWorld(t *testing.T, seed uint64, move bool) *world {
	t.Helper()
	w := &world{t: t, types: []uint8{rc}, rng: rand.New(rand.NewPCG(seed, 1)), qps: make(map[uint32]*fqp)}
	if move {
		w.frng = rand.New(rand.NewPCG(seed, 2))
	}
	t.Cleanup(w.close)
	port := uint16(20000 + rand.IntN(9000))
	for range 3 {
		m := &machine{now: 1, here: &virtual{vni: make(map[*nic.NIC]uint32)}}
		err := error(unix.EADDRINUSE)
		for try := 0; try < 100 && errors.Is(err, unix.EADDRINUSE); try++ {
			a := netip.AddrFrom4([4]byte{127, byte(1 + rand.IntN(254)), byte(rand.IntN(256)), byte(1 + rand.IntN(254))})
			if m.udp, err = roce.ListenUDP(roce.UDPOptions{Port: port}, a); err == nil {
				w.at = append(w.at, a)
			}
		}
		w.must(err)
		w.moving = append(w.moving, m)
	}
	for i, m := range w.moving {
		var err error
		m.e, err = New(Options{Window: 1 << 20, NoMove: true, NoAckWait: true, Resolver: m.here})
		w.must(err)
		m.e.first.clock.now = m.now
		m.e.first.clock.time = func() ib.Time { m.now += 1000; return m.now }
		m.over = roce.NewOverlay(roce.OverlayConfig{Bind: m.udp, Addrs: w.at[i : i+1]})
		w.must(m.e.AddOverlay(m.over, m.udp.Descriptors(), 1<<20, 4<<20))
		h := &frozenHost{machine: m, w: w, gid: ib.GIDOf(address(byte(1 + i))), random: rand.New(rand.NewPCG(seed, uint64(10+i)))}
		h.conf = nic.Config{Name: "rxe0", GIDs: []nic.GIDEntry{{GID: h.gid, NetDev: "lo"}}, Random: func() uint32 { return h.random.Uint32() }}
		h.n = nic.New(h.conf)
		m.here.vni[h.n] = movingVNI
		w.must(m.e.Add(h.n, nil))
		w.hosts = append(w.hosts, h)
	}
	for _, m := range w.moving {
		w.setMap(m, port)
	}
	for _, h := range w.hosts {
		w.addProg(h, memory.Own)
	}
	return w
}

// setMap tells a machine where the NICs are.
func (w *world) setMap(m *machine, port uint16) {
	hosts := make(map[*machine]*overlay.Host)
	for i, o := range w.moving {
		hosts[o] = &overlay.Host{Name: fmt.Sprint(i), Addrs: w.at[i : i+1], Port: port, Self: o == m, Features: features}
	}
	n := overlay.Network{VNI: movingVNI, Name: "red"}
	for _, h := range w.hosts {
		a := h.gid.Addr()
		n.Members = append(n.Members, overlay.Member{Addr: a, MAC: overlay.MACOf(a), Host: hosts[h.machine]})
	}
	now, err := overlay.NewMap([]overlay.Network{n})
	w.must(err)
	m.here.here = now
	for o := range m.here.vni {
		o.Reroute()
	}
	m.e.SetMap(now)
}

// wander lets peers meet a suspended NIC, for some time.
func (w *world) wander() {
	for range w.frng.IntN(4) {
		w.passes(w.frng.IntN(20))
		d := ib.Time(w.frng.Int64N(30e6))
		for _, m := range w.moving {
			m.now += d
		}
	}
}

// moveNIC moves a NIC to another machine, or begins to and gives it up.
func (w *world) moveNIC() {
	w.t.Helper()
	h := w.hosts[w.frng.IntN(len(w.hosts))]
	from, to := h.machine, w.moving[w.frng.IntN(len(w.moving))] // a return to the same machine is a move, too
	w.frozen++
	type frozenProg struct {
		session, space []byte
		files          []*os.File
	}
	var device []byte
	var progs []frozenProg
	encode := func(v any) []byte {
		b, err := state.Marshal(v)
		w.must(err)
		w.bytes += len(b)
		return b
	}
	w.must(from.e.first.halt(context.Background(), func() error {
		device = encode(h.n.Freeze())
		for _, p := range h.progs {
			st, err := p.s.Freeze()
			w.must(err)
			space, files, err := p.space.Freeze()
			w.must(err)
			progs = append(progs, frozenProg{encode(st), encode(&space), files})
		}
		return from.e.Suspend(h.n)
	}))
	w.wander()
	for i, p := range h.progs {
		if again, err := p.s.Freeze(); err != nil || string(stripCounters(w, again)) != string(stripCounters(w, decodeSession(w, progs[i].session))) {
			w.fatal("the state of a suspended session changed: %v", err)
		}
	}
	if w.frng.IntN(4) == 0 {
		from.e.Continue(h.n)
		for _, p := range progs {
			for _, f := range p.files {
				f.Close()
			}
		}
		return
	}
	for _, p := range h.progs {
		forsake(from.e, p.s, p.arena, p.space)
	}
	from.e.Remove(h.n)
	delete(from.here.vni, h.n)

	h.machine, h.n = to, nic.New(h.conf)
	var ns nic.NICState
	w.must(state.Unmarshal(device, &ns))
	w.must(h.n.Thaw(&ns))
	to.here.vni[h.n] = movingVNI
	w.must(to.e.Add(h.n, nil))
	w.must(to.e.Suspend(h.n))
	for i, p := range h.progs {
		var ms memory.SpaceState
		w.must(state.Unmarshal(progs[i].space, &ms))
		var err error
		p.space, err = memory.Thaw(&ms, progs[i].files, memory.ThawOptions{})
		w.must(err)
		p.arena, err = nic.NewArenaOf(dupFile(w.t, p.arenaFile))
		w.must(err)
		p.s, err = h.n.ThawSession(nic.SessionOptions{Arena: p.arena, Space: p.space, Pid: os.Getpid(), Program: "test"}, decodeSession(w, progs[i].session), p, to.e.first.clock.now)
		w.must(err)
		w.attach(to.e, p)
	}
	port := w.moving[0].udp.Port()
	order := w.frng.Perm(len(w.moving) + 1)
	for _, i := range order {
		if i < len(w.moving) {
			w.setMap(w.moving[i], port)
		} else {
			to.e.Continue(h.n)
		}
		w.passes(w.frng.IntN(5))
	}
}

func decodeSession(w *world, b []byte) *nic.SessionState {
	st := new(nic.SessionState)
	w.must(state.Unmarshal(b, st))
	return st
}

// stripCounters encodes a session without what a suspended one may change: counters of answers to its peers, and times.
func stripCounters(w *world, st *nic.SessionState) []byte {
	st = decodeSession(w, must1(state.Marshal(st)))
	var zero transport.QPState
	for i := range st.QPs {
		q := &st.QPs[i].Transport
		q.Common.Count, q.Common.Pace, q.CNP = zero.Common.Count, zero.Common.Pace, zero.CNP
		q.Req.Loss, q.Req.CC, q.Req.Reads.HoleAt, q.Resp.Nak = zero.Req.Loss, zero.Req.CC, 0, zero.Resp.Nak
	}
	return must1(state.Marshal(st.QPs))
}

func must1(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

// TestMovesBetweenHosts runs random programs of verbs calls twice: once as they are, and once with NICs that move
// between three hosts of an overlay network, to return or to meet their peers there, at any point. Some moves are given
// up. The maps of the hosts change one after the other. Both runs give the same answers, completions, events and data.
func TestMovesBetweenHosts(t *testing.T) {
	seeds, rounds := 3, 8
	if os.Getenv("VRDMA_TEST_ALL") != "" {
		seeds, rounds = 60, 30
	}
	moves, size := 0, 0
	for seed := range uint64(seeds) {
		var traces [2][]string
		for i := range traces {
			w := newMovingWorld(t, seed, i == 1)
			w.run(rounds)
			w.close()
			traces[i] = w.trace
			moves, size = moves+w.frozen, size+w.bytes
		}
		for i, want := range traces[0] {
			if i >= len(traces[1]) || traces[1][i] != want {
				t.Fatalf("seed %d, line %d of %d:\n%s\nwithout moves\n%s", seed, i, len(traces[0]),
					strings.Join(traces[1][max(i-5, 0):min(i+3, len(traces[1]))], "\n"), strings.Join(traces[0][max(i-5, 0):i+1], "\n"))
			}
		}
	}
	if moves < 20*seeds {
		t.Errorf("%d moves of %d programs", moves, seeds)
	}
	t.Logf("%d moves, %d bytes each", moves, size/max(moves, 1))
}

// TestSuspendOnLoops suspends one of three NICs again and again, by command and by a fault, while programs on several
// loops write to each other. All data arrives.
func TestSuspendOnLoops(t *testing.T) {
	e, _, nics := twins(t, Options{Loops: 3}, address(1), address(2), address(3))
	var qs [6]*testQP
	for i := range qs {
		n := nics[i/2]
		qs[i] = newProgram(t, e, n, n.GIDs[0].GID, i).newQP(rc)
	}
	// One pair within each of the first NICs, and one between the last two.
	pairs := [][2]*testQP{{qs[0], qs[1]}, {qs[2], qs[4]}, {qs[3], qs[5]}}
	for _, p := range pairs {
		connect(p[0], p[1])
	}
	rules, err := fault.ParseAll("suspend,for=1ms")
	if err != nil {
		t.Fatal(err)
	}
	const n, writes = 100_000, 30
	for round := range 40 {
		victim := nics[round%len(nics)]
		for i, p := range pairs {
			pattern(p[0].c.mem[:n], byte(round+i))
			clear(p[1].c.mem[:n])
			for range writes {
				p[0].post(wr{op: opWrite, flags: signal, n: n, remote: p[1].c.base, rkey: p[1].mr.RKey})
			}
		}
		if round%2 == 0 {
			e.Do(func() {
				if err := e.Suspend(victim); err != nil {
					t.Error(err)
				}
			})
			e.Do(func() { e.Continue(victim) })
		} else {
			e.Do(func() {
				e.SetFaults(victim, []*fault.Plan{fault.New([]fault.Named{{Name: "f", Rule: rules[0]}}, time.Duration(e.Now()))})
			})
		}
		for i, p := range pairs {
			for range writes {
				if w := p[0].wait(); w.status != 0 {
					t.Fatalf("round %d, pair %d: %+v", round, i, w)
				}
			}
			if !bytes.Equal(p[1].c.mem[:n], p[0].c.mem[:n]) {
				t.Fatalf("round %d, pair %d: other data arrived", round, i)
			}
		}
		e.Do(func() { e.SetFaults(victim, nil) })
	}
}
