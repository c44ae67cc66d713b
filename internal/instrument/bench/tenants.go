package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// A tenant has NICs a and b and a program that runs on a.
type tenant struct {
	name                string
	tenantSpec, nicSpec string   // more fields of their specs
	program             []string // a program of programs/ and its arguments; nil: none
}

// sending returns the tenant with programs/traffic.c, which sends messages of this size through this many queue pairs.
func (c tenant) sending(size, qps int) tenant {
	depth := max(min(tenantPosted/size/qps, tenantRequests/qps, maxDepth), 16)
	c.program = []string{"traffic", fmt.Sprint(size), fmt.Sprint(qps), fmt.Sprint(depth)}
	return c
}

const (
	// tenantPosted is how many bytes a tenant posts, in at most tenantRequests requests. Its queues must not run empty while it
	// waits for a processor for some milliseconds.
	tenantPosted   = 256 << 20
	tenantRequests = 16 << 10
	maxDepth       = 4 << 10
	// tenantWarmup is how long all tenants run before the measurement, tenantTime how long it lasts.
	tenantWarmup = 700 * time.Millisecond
	tenantTime   = 1500 * time.Millisecond
)

// tenantObjects declares tenants.
func tenantObjects(all []tenant) string {
	var s strings.Builder
	object := func(kind, meta, spec string) {
		fmt.Fprintf(&s, "apiVersion: vrdma.io/v1\nkind: %s\nmetadata: {%s}\nspec: {%s}\n---\n", kind, meta, spec)
	}
	for _, c := range all {
		of := ", tenant: " + c.name
		object("Tenant", "name: "+c.name, c.tenantSpec)
		object("Network", "name: net"+of, "subnets: [10.1.0.0/24]")
		object("NIC", "name: a"+of, strings.TrimSuffix("network: net, address: 10.1.0.1, "+c.nicSpec, ", "))
		object("NIC", "name: b"+of, "network: net, address: 10.1.0.2")
	}
	return s.String()
}

// A tenantDaemon is a daemon that serves tenants.
type tenantDaemon struct {
	*testbed.Host
	daemon   *testbed.Daemon
	dir      string
	runDir   string // for the daemon's sockets and device trees
	cpus     string // the processors of the programs; empty: all
	programs map[string]string
	sockets  map[string]string // socket of NIC a, by tenant
}

// open starts a daemon with these tenants.
func (q qosProbes) open(ctx context.Context, all []tenant) (_ *tenantDaemon, err error) {
	h := &tenantDaemon{cpus: tenantCPUs()}
	defer func() {
		if err != nil {
			h.close()
		}
	}()
	if h.dir, err = makeDirectory(q.lab, q.lab.Dir); err != nil {
		return nil, err
	}
	if h.runDir, err = makeDirectory(q.lab, runtimeDir); err != nil {
		h.runDir, err = h.dir, nil
	}
	if h.programs, err = q.lab.Compile(ctx, "traffic", "unruly"); err != nil {
		return nil, err
	}
	objects := filepath.Join(h.dir, "objects.yaml")
	if err := os.WriteFile(objects, []byte(tenantObjects(all)), 0o644); err != nil {
		return nil, err
	}
	h.Host = &testbed.Host{Lab: q.lab, Socket: filepath.Join(h.runDir, "s"), IP: "127.0.0.1"}
	if h.daemon, err = h.Start(ctx, "--network=false", "--store", filepath.Join(h.dir, "store")); err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return h, nil
	}
	if _, err = q.lab.Run(ctx, q.lab.Vrdma, "apply", "--socket", h.Socket, "-f", objects); err != nil {
		return nil, err
	}
	return h, h.waitIdle(ctx, 1)
}

// waitIdle waits until the daemon has finished the work of an apply: it was idle in this many intervals in a row. It waits for a
// minute at most.
func (h *tenantDaemon) waitIdle(ctx context.Context, looks int) error {
	const look = 200 * time.Millisecond
	for i, silent := 0, 0; i < 300 && silent < looks; i++ {
		before, err1 := h.daemon.CPUTime()
		err2 := testbed.Sleep(ctx, look)
		after, err3 := h.daemon.CPUTime()
		if err := errors.Join(err1, err2, err3); err != nil {
			return err
		}
		if silent++; after-before > look/20 {
			silent = 0
		}
	}
	return nil
}

func (h *tenantDaemon) close() {
	if h.daemon != nil {
		h.daemon.Stop()
	}
	os.RemoveAll(h.runDir)
	os.RemoveAll(h.dir)
}

// runtimeDir is on a tmpfs, as /run is. The store is on a disk.
const runtimeDir = "/dev/shm"

// makeDirectory makes a directory that the user of the daemon owns.
func makeDirectory(l *testbed.Lab, in string) (string, error) {
	dir, err := os.MkdirTemp(in, "qos")
	if err != nil || l.User == nil {
		return dir, err
	}
	if err := os.Chown(dir, int(l.User.Uid), int(l.User.Gid)); err != nil {
		os.RemoveAll(dir)
		return "", err
	}
	return dir, nil
}

// tenantCPUs returns all processors but the last for the tenants' programs. The daemon then has one for itself, and the kernel's
// scheduler does not affect the result.
func tenantCPUs() string {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil || set.Count() < 2 {
		return ""
	}
	var list []string
	for i := 0; len(list) < set.Count()-1; i++ {
		if set.IsSet(i) {
			list = append(list, fmt.Sprint(i))
		}
	}
	return strings.Join(list, ",")
}

// command returns the command that runs argv on a NIC of a tenant, on the tenants' processors.
func (h *tenantDaemon) command(c tenant, nic string, argv ...string) []string {
	run := []string{h.Lab.Vrdma, "run", "-q", "--socket", h.Socket, "--nic", c.name + "/" + nic, "--"}
	if h.cpus != "" {
		run = append([]string{"taskset", "-c", h.cpus}, run...)
	}
	return append(run, argv...)
}

// start starts the programs of tenants.
func (h *tenantDaemon) start(ctx context.Context, all []tenant) (*testbed.IdlePrograms, error) {
	c := &testbed.IdlePrograms{}
	for _, one := range all {
		argv := append([]string{h.programs[one.program[0]]}, one.program[1:]...)
		_, out, err := c.Add(h.Lab.Command(ctx, h.command(one, "a", argv...)...))
		if err == nil {
			var line string
			if line, err = bufio.NewReader(out).ReadString('\n'); err == nil && strings.TrimSpace(line) != "ready" {
				err = fmt.Errorf("%s of %s said %q", one.program[0], one.name, line)
			}
		}
		if err != nil {
			c.Stop()
			return nil, fmt.Errorf("the load of %s: %w", one.name, err)
		}
	}
	return c, nil
}

// A usage is what a tenant got from the daemon: in total, or per second.
type usage struct {
	loop, bytes, messages float64
	at                    time.Time
	delays                map[int64]uint64 // counts by upper bound in ns
}

// fewTenants is up to how many tenants the status of each NIC is asked at its own socket. The whole status of a thousand NICs takes
// processor time that the loop needs.
const fewTenants = 3

// socketOf returns the socket of a tenant's NIC a.
func (h *tenantDaemon) socketOf(ctx context.Context, c tenant) (string, error) {
	if at := h.sockets[c.name]; at != "" {
		return at, nil
	}
	out, err := h.Lab.Run(ctx, h.command(c, "a", "printenv", "VRDMA_SOCKET")...)
	if err == nil {
		if h.sockets == nil {
			h.sockets = make(map[string]string)
		}
		h.sockets[c.name] = strings.TrimSpace(out)
	}
	return h.sockets[c.name], err
}

// nics returns the status of the tenants' NICs.
func (h *tenantDaemon) nics(ctx context.Context, all []tenant) (list []protocol.NICStatus, err error) {
	if len(all) > fewTenants {
		s, err := h.Status(ctx)
		if err != nil {
			return nil, err
		}
		return s.NICs, nil
	}
	for _, c := range all {
		at := *h.Host
		if at.Socket, err = h.socketOf(ctx, c); err != nil {
			return nil, err
		}
		s, err := at.Status(ctx)
		if err != nil {
			return nil, err
		}
		list = append(list, s.NICs...)
	}
	return list, nil
}

// usages returns the counters of NIC a of each tenant.
func (h *tenantDaemon) usages(ctx context.Context, all []tenant) ([]usage, error) {
	nics, err := h.nics(ctx, all)
	if err != nil {
		return nil, err
	}
	at := make(map[string]*protocol.NICStatus)
	for i, n := range nics {
		at[n.Tenant+"/"+n.NIC] = &nics[i]
	}
	list := make([]usage, len(all))
	for i, c := range all {
		n := at[c.name+"/a"]
		if n == nil {
			return nil, fmt.Errorf("vrdma status knows no NIC %s/a", c.name)
		}
		delays := make(map[int64]uint64)
		for _, d := range n.Delays {
			delays[d.BelowNS] = d.Count
		}
		list[i] = usage{float64(n.Used["loop_ns"]), float64(n.Used["transmit_bytes"]), float64(n.Used["sent_write"] + n.Used["sent_send"]), n.At, delays}
	}
	return list, nil
}

// ratesBetween returns the usage per second between two readings, by the daemon's clock.
func ratesBetween(before, after []usage) []usage {
	list := make([]usage, len(after))
	for i, u := range after {
		b := before[i]
		s := u.at.Sub(b.at).Seconds()
		list[i] = usage{loop: (u.loop - b.loop) / s, bytes: (u.bytes - b.bytes) / s, messages: (u.messages - b.messages) / s}
	}
	return list
}

// rates measures tenants whose programs are running.
func (h *tenantDaemon) rates(ctx context.Context, all []tenant, d time.Duration) ([]usage, error) {
	before, err := h.usages(ctx, all)
	if err != nil {
		return nil, err
	}
	if err := testbed.Sleep(ctx, d); err != nil {
		return nil, err
	}
	after, err := h.usages(ctx, all)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if !after[i].at.After(before[i].at) {
			return nil, errors.New("vrdma status gave the same numbers twice")
		}
	}
	return ratesBetween(before, after), nil
}

// measure starts the tenants' programs and measures while all of them run.
func (h *tenantDaemon) measure(ctx context.Context, all []tenant) ([]usage, error) {
	c, err := h.start(ctx, all)
	if err != nil {
		return nil, err
	}
	defer c.Stop()
	if err := testbed.Sleep(ctx, tenantWarmup); err != nil {
		return nil, err
	}
	return h.rates(ctx, all, tenantTime)
}
