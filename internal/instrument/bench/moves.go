package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"vrdma.dev/vrdma/internal/instrument/drivers"
	"vrdma.dev/vrdma/internal/instrument/experiment"
	"vrdma.dev/vrdma/internal/instrument/podmanhosts"
	"vrdma.dev/vrdma/internal/instrument/probe"
	"vrdma.dev/vrdma/internal/instrument/speedtable"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

const (
	// movedBytes is what a container that moves has registered, or has in memory.
	movedBytes = 64 << 20
	// quietTime is how long both containers run before and after a move: what is left of it is over then.
	quietTime = 500 * time.Millisecond
	// moveTime is how long a move may take.
	moveTime = time.Minute
)

// moves measures how long a container stands still while it moves to another host, beside the same container without RDMA. Both
// times are CRIU's, podman's and those of a copy in memory; the first has what vrdma adds. While the second container moves, the peer
// of the first sends nothing, as it does while the first one moves.
func (t *Table) moves() part {
	const who = "longest gap of a container that moves, 64 MiB, "
	return part{
		name: "move",
		rows: []speedtable.Row{
			{What: who + "16 queue pairs, beyond the same without RDMA", Ours: speedtable.Series{Unit: "s"}, Bound: 0.150, AtMost: true},
			{What: who + "1000 queue pairs, beyond the same without RDMA", Ours: speedtable.Series{Unit: "s"}, Bound: 1, AtMost: true},
			{What: who + "without RDMA", Ours: speedtable.Series{Unit: "s"}, Unbounded: true, AtMost: true},
		},
		measure: func(ctx context.Context, rows []speedtable.Row) error {
			programs, err := t.Lab.Compile(ctx, "roam")
			if err != nil {
				return err
			}
			hosts, err := podmanhosts.New(ctx)
			if err != nil {
				return err
			}
			m := &moveRun{Table: t, hosts: hosts}
			return errors.Join(m.measure(ctx, programs["roam"], rows), hosts.Close())
		},
		asked: true, single: true,
	}
}

// movedObjects declare a NIC for each container that moves, and for each peer.
const movedObjects = `{apiVersion: vrdma.io/v1, kind: Tenant, metadata: {name: bench}}
---
{apiVersion: vrdma.io/v1, kind: Network, metadata: {name: net, tenant: bench}, spec: {subnets: [10.1.0.0/24]}}
---
{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: few, tenant: bench}, spec: {network: net, address: 10.1.0.1}}
---
{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: many, tenant: bench}, spec: {network: net, address: 10.1.0.2}}
---
{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: peer, tenant: bench}, spec: {network: net, address: 10.1.0.9, host: node-b}}
`

// A moveRun has the hosts of the part.
type moveRun struct {
	*Table
	hosts *podmanhosts.Hosts
}

// A gap is the time for which a container stood still in a move.
type gap struct{ from, to time.Time }

// parseGap parses a line of roam: the begin and the end in seconds.
func parseGap(line string) (g gap, err error) {
	var from, to float64
	if n, _ := fmt.Sscan(line, &from, &to); n != 2 {
		return g, fmt.Errorf("roam printed %q, want a gap", line)
	}
	at := func(seconds float64) time.Time { return time.UnixMicro(int64(seconds * 1e6)) }
	return gap{at(from), at(to)}, nil
}

// length is how long the gap is.
func (g gap) length() time.Duration { return g.to.Sub(g.from) }

// steps are the parts of gaps by the steps of podman, in seconds.
type steps struct{ checkpoint, transfer, restore []float64 }

// add adds the gap of a move.
func (s *steps) add(g gap, m podmanhosts.Move) {
	part := func(from, to time.Time) float64 {
		if from.Before(g.from) {
			from = g.from
		}
		if to.After(g.to) {
			to = g.to
		}
		return max(0, to.Sub(from).Seconds())
	}
	s.checkpoint = append(s.checkpoint, part(g.from, m.Checkpointed))
	s.transfer = append(s.transfer, part(m.Checkpointed, m.Copied))
	s.restore = append(s.restore, part(m.Copied, g.to)) // until the first answer, not until podman returns
}

// String has the medians.
func (s *steps) String() string {
	of := func(values []float64) string { return experiment.Amount(experiment.Median(values), "s") }
	return fmt.Sprintf("checkpoint %s, copy %s, restore %s", of(s.checkpoint), of(s.transfer), of(s.restore))
}

// measure moves the containers in turn, in every round: there, and in the next round back.
func (m *moveRun) measure(ctx context.Context, program string, rows []speedtable.Row) error {
	if err := m.hosts.NewImage(ctx, "roam", program); err != nil {
		return err
	}
	if err := m.hosts.Apply(ctx, movedObjects); err != nil {
		return err
	}
	var errs []error
	for i, c := range []struct {
		nic, address string
		qps          int
	}{{"few", "10.1.0.1", fewQPs}, {"many", "10.1.0.2", manyQPs}} {
		if !m.want(rows[i]) && !m.want(rows[2]) {
			continue
		}
		if err := m.pair(ctx, c.nic, c.address, c.qps, rows[i:i+1], &rows[2]); err != nil {
			errs = append(errs, fmt.Errorf("%d queue pairs: %w", c.qps, err))
		}
	}
	return errors.Join(errs...)
}

// pair measures a container with a NIC beside one without, and fills their rows.
func (m *moveRun) pair(ctx context.Context, nic, address string, qps int, with []speedtable.Row, without *speedtable.Row) error {
	starting, cancel := context.WithTimeoutCause(ctx, testbed.ToolTimeout, testbed.Timeout(testbed.ToolTimeout))
	defer cancel()
	for name, h := range map[string]*podmanhosts.Host{nic: m.hosts.A, "peer": m.hosts.B} {
		if err := h.Await(starting, "ready", "get", "nic", "bench/"+name); err != nil {
			return err
		}
	}
	roams, err := m.hosts.Start(starting, nic, "roam", "bench."+nic, "roam", "serve", strconv.Itoa(qps), strconv.Itoa(movedBytes), address)
	if err != nil {
		return err
	}
	defer roams.Remove(context.WithoutCancel(ctx))
	if err := roams.AwaitListener(starting); err != nil {
		return err
	}
	peer, err := m.startPeer(ctx, starting, qps, address)
	if err != nil {
		return err
	}
	defer peer.stop()
	control, err := m.hosts.Start(starting, nic+"-alone", "roam", "", "roam", "alone", strconv.Itoa(movedBytes))
	if err != nil {
		return err
	}
	defer control.Remove(context.WithoutCancel(ctx))
	cancel()

	series := []speedtable.Row{{What: with[0].What}, {What: without.What}}
	var ours, theirs steps
	err = m.fill(ctx, m.Rounds, []probe.Probe{
		{Name: fmt.Sprintf("move with %d queue pairs", qps), Unit: "s", Measure: func(ctx context.Context) (drivers.Reading, error) {
			return m.gapOfPeer(ctx, roams, peer, &ours)
		}},
		{Name: "move without RDMA", Unit: "s", Measure: func(ctx context.Context) (drivers.Reading, error) {
			return m.gapAlone(ctx, control, peer, &theirs)
		}},
	}, series, []source{{0, 1}, {1, alone}})
	if series[0].Against != nil {
		with[0].Fill(series[0].Ours, *series[0].Against)
		with[0].Subtract()
	}
	if len(ours.checkpoint) > 0 && len(theirs.checkpoint) > 0 {
		with[0].Note += fmt.Sprintf("; the gap by steps of podman: %v; without RDMA: %v", &ours, &theirs)
	}
	if len(without.Ours.Values) == 0 {
		without.Fill(series[1].Ours)
	}
	return err
}

// other is the host where the container is not.
func (m *moveRun) other(c *podmanhosts.Container) *podmanhosts.Host {
	if c.At == m.hosts.A {
		return m.hosts.B
	}
	return m.hosts.A
}

// move moves a container to the other host.
func (m *moveRun) move(ctx context.Context, c *podmanhosts.Container) (moved podmanhosts.Move, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, moveTime, testbed.Timeout(moveTime))
	defer cancel()
	if err := testbed.Sleep(ctx, quietTime); err != nil {
		return moved, err
	}
	if moved, err = c.Move(ctx, m.other(c)); err != nil {
		return moved, err
	}
	return moved, testbed.Sleep(ctx, quietTime)
}

// gapOfPeer moves a container and returns the longest gap that its peer has seen.
func (m *moveRun) gapOfPeer(ctx context.Context, c *podmanhosts.Container, p *peer, s *steps) (r drivers.Reading, err error) {
	if _, err := p.tell(""); err != nil { // what was before
		return r, err
	}
	moved, err := m.move(ctx, c)
	if err != nil {
		return r, err
	}
	g, err := p.tell("")
	if err != nil {
		return r, err
	}
	s.add(g, moved)
	r.Value = g.length().Seconds()
	return r, nil
}

// gapAlone moves a container and returns the longest gap that it has seen itself. The peer of the other container is silent.
func (m *moveRun) gapAlone(ctx context.Context, c *podmanhosts.Container, p *peer, s *steps) (r drivers.Reading, err error) {
	if _, err := p.tell("pause"); err != nil {
		return r, err
	}
	moved, err := m.move(ctx, c)
	if _, gerr := p.tell("go"); err == nil {
		err = gerr
	}
	if err != nil {
		return r, err
	}
	// The output has earlier moves, too: podman moves the container's log with it.
	out, err := c.Output(ctx)
	if err != nil {
		return r, err
	}
	var worst gap
	for line := range strings.Lines(out) {
		g, err := parseGap(line)
		if err != nil {
			return r, err
		}
		if g.to.After(moved.Began) && g.length() > worst.length() {
			worst = g
		}
	}
	if worst.length() == 0 {
		return r, errors.New("roam alone has seen no gap")
	}
	s.add(worst, moved)
	r.Value = worst.length().Seconds()
	return r, nil
}

// A peer is roam ping on the second host.
type peer struct {
	in    io.WriteCloser
	lines *bufio.Reader
	wait  func() error
}

// startPeer starts it, and waits until all its messages are answered. It ends with life at the latest.
func (m *moveRun) startPeer(life, starting context.Context, qps int, address string) (*peer, error) {
	cmd := m.hosts.B.Command(life, "vrdma", "run", "--quiet", "--nic", "bench/peer", "--", "roam", "ping", strconv.Itoa(qps), address)
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	var said testbed.Transcript
	cmd.Stderr = &said
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		return nil, err
	}
	p := &peer{in, bufio.NewReader(out), cmd.Wait}
	ready := make(chan string, 1)
	go func() {
		line, _ := p.lines.ReadString('\n') // without a line it has ended
		ready <- strings.TrimSpace(line)
	}()
	select {
	case line := <-ready:
		if line == "ready" {
			return p, nil
		}
		p.stop()
		return nil, fmt.Errorf("roam ping did not become ready: %q %s", line, said.String())
	case <-starting.Done():
		p.in.Close()
		cmd.Cancel()
		<-ready
		p.stop()
		return nil, fmt.Errorf("roam ping: %w: %s", context.Cause(starting), said.String())
	}
}

// tell writes a line to it: "pause", "go" or nothing. It returns the longest gap since the last call.
func (p *peer) tell(line string) (g gap, err error) {
	if _, err := io.WriteString(p.in, line+"\n"); err != nil {
		return g, fmt.Errorf("roam ping has ended: %w", err)
	}
	answer, err := p.lines.ReadString('\n')
	if err != nil {
		return g, fmt.Errorf("roam ping printed %q: %w", answer, err)
	}
	return parseGap(answer)
}

// stop ends it.
func (p *peer) stop() {
	p.in.Close()
	p.wait() // the exit status does not matter
}
