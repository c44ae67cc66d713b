package demo

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/instrument/podmanhosts"
)

// Migrate moves a running container from one host to another while a program on the other host writes to its memory with
// ib_write_bw, and draws what the network carried meanwhile.
func Migrate(ctx context.Context, out io.Writer) (err error) {
	d := &migration{out: out}
	d.say("Two hosts, node-a and node-b, with podman, CRIU and a vrdma daemon each …")
	hosts, err := podmanhosts.New(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, hosts.Close()) }()
	d.hosts = hosts
	return d.run(ctx)
}

// migration is the demonstration.
type migration struct {
	out    io.Writer
	hosts  *podmanhosts.Hosts
	server *podmanhosts.Container

	mu      sync.Mutex
	samples []sample // guarded by mu
}

func (d *migration) say(format string, args ...any) { fmt.Fprintf(d.out, format+"\n", args...) }

// migrationObjects are the declared objects. The container's NIC is of no host: it is where the container is.
const migrationObjects = `{apiVersion: vrdma.io/v1, kind: Tenant, metadata: {name: red}}
---
{apiVersion: vrdma.io/v1, kind: Network, metadata: {name: train, tenant: red}, spec: {subnets: [10.1.0.0/24]}}
---
{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: web, tenant: red}, spec: {network: train, address: 10.1.0.1}}
---
{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: db, tenant: red}, spec: {network: train, address: 10.1.0.2, host: node-b}}
`

const (
	// before and after are how long the demonstration watches without a move.
	before, after = 1500 * time.Millisecond, 1500 * time.Millisecond
	// patience is how long traffic may take to begin, or to continue.
	patience = time.Minute
)

func (d *migration) run(ctx context.Context) error {
	if err := d.hosts.Apply(ctx, migrationObjects); err != nil {
		return err
	}
	if err := d.start(ctx); err != nil {
		return err
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	go d.watch(watching)
	if err := d.flows(ctx); err != nil {
		return err
	}
	if err := pause(ctx, before); err != nil {
		return err
	}
	d.say("\nIt moves to node-b:\n$ podman container checkpoint -e web.tar web    # node-a\n$ scp web.tar node-b:\n$ podman container restore -i web.tar         # node-b")
	m, err := d.server.Move(ctx, d.hosts.B)
	if err != nil {
		return err
	}
	if err := d.flows(ctx); err != nil {
		return fmt.Errorf("after the move: %w", err)
	}
	if err := pause(ctx, after); err != nil {
		return err
	}
	stop()
	d.show(m)
	out, err := d.hosts.A.Run(ctx, "vrdma", "get", "nics")
	if err != nil {
		return err
	}
	d.say("\n$ vrdma get nics\n%s", strings.TrimSpace(out))
	return nil
}

// start starts the container on node-a, and its peer on node-b.
func (d *migration) start(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errors.New("the container did not start in time"))
	defer cancel()
	if err := d.hosts.NewImage(ctx, "perftest", "ib_write_bw"); err != nil {
		return err
	}
	for nic, h := range map[string]*podmanhosts.Host{"red/web": d.hosts.A, "red/db": d.hosts.B} {
		if err := h.Await(ctx, "ready", "get", "nic", nic); err != nil {
			return err
		}
	}
	argv := []string{"ib_write_bw", "-R", "-F", "-s", "65536", "--run_infinitely", "-D", "1"}
	d.say("\n$ podman run -d --name web --device vrdma.io/nic=red.web perftest %s    # node-a", strings.Join(argv, " "))
	if d.server, err = d.hosts.Start(ctx, "web", "perftest", "red.web", argv...); err != nil {
		return err
	}
	if err := d.server.AwaitListener(ctx); err != nil {
		return err
	}
	argv = append(argv, "10.1.0.1")
	d.say("$ vrdma run --nic red/db -- %s    # node-b", strings.Join(argv, " "))
	return d.hosts.B.Launch(append([]string{"vrdma", "run", "-q", "--nic", "red/db", "--"}, argv...)...)
}

// flows waits until the peer moves data again.
func (d *migration) flows(ctx context.Context) error {
	begin := time.Now()
	for {
		d.mu.Lock()
		n := len(d.samples)
		moving := n > 3 && d.samples[n-1].at.After(begin) && d.samples[n-1].bytes > d.samples[n-3].bytes
		d.mu.Unlock()
		if moving {
			return nil
		}
		if time.Since(begin) > patience {
			return fmt.Errorf("ib_write_bw on node-b moves no data: %s", d.hosts.B.Said())
		}
		if err := pause(ctx, sampleEvery); err != nil {
			return err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// sampleEvery is the time between two samples of the peer's counters.
const sampleEvery = 20 * time.Millisecond

// watch reads what the program on node-b has sent, until ctx ends.
func (d *migration) watch(ctx context.Context) {
	cmd := d.hosts.B.Command(ctx, "vrdma", "demo", "migrate", "--sample")
	out, err := cmd.StdoutPipe()
	if err != nil || cmd.Start() != nil {
		return // without samples no data flows, which is an error
	}
	defer cmd.Wait() // it was killed
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var nanoseconds int64
		var bytes uint64
		if n, _ := fmt.Sscan(lines.Text(), &nanoseconds, &bytes); n != 2 {
			continue
		}
		d.mu.Lock()
		d.samples = append(d.samples, sample{time.Unix(0, nanoseconds), bytes})
		d.mu.Unlock()
	}
}

// Sample prints the time and how many bytes the NIC of the peer has sent, again and again. socket is that of its daemon.
func Sample(ctx context.Context, out io.Writer, socket string) error {
	for {
		top, err := protocol.QueryTop(socket)
		if err != nil {
			return err
		}
		for _, n := range top.NICs {
			if n.Tenant+"/"+n.NIC != "red/db" {
				continue
			}
			if _, err := fmt.Fprintln(out, time.Now().UnixNano(), n.Used["transmit_bytes"]); err != nil {
				return err
			}
		}
		if err := pause(ctx, sampleEvery); err != nil {
			return err
		}
	}
}

// show prints what was measured.
func (d *migration) show(m podmanhosts.Move) {
	d.mu.Lock()
	defer d.mu.Unlock()
	from, to := longestGap(d.samples)
	first := m.Began.Add(-before)
	draw(d.out, d.samples, first, []mark{{m.Began, "checkpoint"}, {m.Checkpointed, "copy"}, {m.Copied, "restore"}, {m.Restored, "runs on node-b"}})
	ms := func(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }
	d.say("\nNo data moved for %s. podman took %s for the checkpoint of %.1f MB, %s for the copy, %s for the restore.\nib_write_bw has seen no error, and continues with the same queue pair and the same keys.",
		ms(to.Sub(from)), ms(m.Checkpointed.Sub(m.Began)), float64(m.Bytes)/1e6, ms(m.Copied.Sub(m.Checkpointed)), ms(m.Restored.Sub(m.Copied)))
}
