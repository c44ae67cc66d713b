package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"vrdma.dev/vrdma/internal/instrument/drivers"
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
// times are CRIU's, podman's and those of a copy in memory; the first has what vrdma adds.
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
	err = m.fill(ctx, m.Rounds, []probe.Probe{
		{Name: fmt.Sprintf("move with %d queue pairs", qps), Unit: "s", Measure: func(ctx context.Context) (drivers.Reading, error) { return m.gapOfPeer(ctx, roams, peer) }},
		{Name: "move without RDMA", Unit: "s", Measure: func(ctx context.Context) (drivers.Reading, error) { return m.gapAlone(ctx, control) }},
	}, series, []source{{0, 1}, {1, alone}})
	if series[0].Against != nil {
		with[0].Fill(series[0].Ours, *series[0].Against)
		with[0].Subtract()
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
func (m *moveRun) move(ctx context.Context, c *podmanhosts.Container) error {
	ctx, cancel := context.WithTimeoutCause(ctx, moveTime, testbed.Timeout(moveTime))
	defer cancel()
	if err := testbed.Sleep(ctx, quietTime); err != nil {
		return err
	}
	if _, err := c.Move(ctx, m.other(c)); err != nil {
		return err
	}
	return testbed.Sleep(ctx, quietTime)
}

// gapOfPeer moves a container and returns the longest gap that its peer has seen.
func (m *moveRun) gapOfPeer(ctx context.Context, c *podmanhosts.Container, p *peer) (r drivers.Reading, err error) {
	if _, err := p.worst(); err != nil { // what was before
		return r, err
	}
	if err := m.move(ctx, c); err != nil {
		return r, err
	}
	r.Value, err = p.worst()
	return r, err
}

// gapAlone moves a container and returns the longest gap that it has seen itself.
func (m *moveRun) gapAlone(ctx context.Context, c *podmanhosts.Container) (r drivers.Reading, err error) {
	if err := m.move(ctx, c); err != nil {
		return r, err
	}
	// The output is that since the container was restored on this host: the first line is the gap of the move.
	out, err := c.Output(ctx)
	if err != nil {
		return r, err
	}
	for _, word := range strings.Fields(out) {
		v, err := strconv.ParseFloat(word, 64)
		if err != nil {
			return r, fmt.Errorf("roam alone printed %q", out)
		}
		r.Value = math.Max(r.Value, v)
	}
	if r.Value == 0 {
		return r, errors.New("roam alone has seen no gap")
	}
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

// worst returns the longest gap since the last call.
func (p *peer) worst() (float64, error) {
	if _, err := io.WriteString(p.in, "\n"); err != nil {
		return 0, fmt.Errorf("roam ping has ended: %w", err)
	}
	line, err := p.lines.ReadString('\n')
	if err != nil {
		return 0, fmt.Errorf("roam ping printed %q: %w", line, err)
	}
	return strconv.ParseFloat(strings.TrimSpace(line), 64)
}

// stop ends it.
func (p *peer) stop() {
	p.in.Close()
	p.wait() // the exit status does not matter
}
