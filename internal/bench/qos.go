package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"vrdma/internal/protocol"
)

// A customer is a tenant of a daemon with NICs a and b, and what runs from a to b: ib_write_bw, or
// nothing.
type customer struct {
	name        string
	tenant, nic string // specs, besides what they need
	size, qps   int
}

// file is what declares customers.
func file(all []customer) string {
	var s strings.Builder
	object := func(kind, meta, spec string) {
		fmt.Fprintf(&s, "apiVersion: vrdma.io/v1\nkind: %s\nmetadata: {%s}\nspec: {%s}\n---\n", kind, meta, spec)
	}
	for _, c := range all {
		of := ", tenant: " + c.name
		object("Tenant", "name: "+c.name, c.tenant)
		object("Network", "name: net"+of, "subnets: [10.1.0.0/24]")
		object("NIC", "name: a"+of, strings.TrimSuffix("network: net, address: 10.1.0.1, "+c.nic, ", "))
		object("NIC", "name: b"+of, "network: net, address: 10.1.0.2")
	}
	return s.String()
}

const (
	// qosWarm is how long all customers run before what they have is measured, and qosTime for how
	// long it is.
	qosWarm = time.Second
	qosTime = 3 * time.Second
	// qosSeconds is how long their tools run at most: they are stopped before.
	qosSeconds = 60
	// qosDepth is how many bytes a customer has posted: on two processors its program may have to
	// wait for long until it can post again.
	qosDepth = 256 << 20
)

// serve runs f with a daemon that has these customers.
func (t *Table) serve(ctx context.Context, all []customer, f func(*Host) error) error {
	dir, err := os.MkdirTemp(t.Lab.Dir, "qos")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if u := t.Lab.User; u != nil {
		if err := os.Chown(dir, int(u.Uid), int(u.Gid)); err != nil {
			return err
		}
	}
	objects := filepath.Join(dir, "objects.yaml")
	if err := os.WriteFile(objects, []byte(file(all)), 0o644); err != nil {
		return err
	}
	h := &Host{lab: t.Lab, Socket: filepath.Join(dir, "s"), IP: "127.0.0.1"}
	d, err := h.Start(ctx, "--network=false", "--store", filepath.Join(dir, "store"))
	if err != nil {
		return err
	}
	defer d.stop()
	if _, err := t.Lab.Run(ctx, t.Lab.Vrdma, "apply", "--socket", h.Socket, "-f", objects); err != nil {
		return err
	}
	return f(h)
}

// on runs a pair of a tool from one NIC of a customer to the other.
func (h *Host) on(ctx context.Context, c customer, tool string, args ...string) (string, error) {
	port, err := freePort()
	if err != nil {
		return "", err
	}
	side := func(nic string, more ...string) []string {
		argv := []string{h.lab.Vrdma, "run", "-q", "--socket", h.Socket, "--nic", c.name + "/" + nic, "--", tool, "-F", "-d", "rxe0", "-x", "0", "-p", fmt.Sprint(port)}
		return append(append(argv, args...), more...)
	}
	return h.lab.Pair(ctx, h.listens(port), side("b"), side("a", h.IP))
}

// flood runs ib_write_bw for a customer until ctx ends. ib_write_bw cannot sleep: of many that
// poll on two processors each has one so seldom that much has to be posted.
func (h *Host) flood(ctx context.Context, c customer) error {
	depth := max(min(qosDepth/c.size/max(c.qps, 1), 1024), 16)
	_, err := h.on(ctx, c, "ib_write_bw", "-D", fmt.Sprint(qosSeconds), "-s", fmt.Sprint(c.size), "-q", fmt.Sprint(max(c.qps, 1)), "-t", fmt.Sprint(depth))
	return err
}

// A had is what a customer had of the daemon, a second.
type had struct{ loop, bytes, messages float64 }

// used is what the daemon has counted for the NICs a of all.
func (h *Host) used(ctx context.Context, all []customer) ([]had, time.Time, error) {
	out, err := h.lab.Run(ctx, h.lab.Vrdma, "status", "--socket", h.Socket, "-o", "json")
	now := time.Now()
	if err != nil {
		return nil, now, err
	}
	var s protocol.Status
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		return nil, now, err
	}
	list := make([]had, len(all))
	for i, c := range all {
		for _, n := range s.NICs {
			if n.Tenant == c.name && n.NIC == "a" {
				list[i] = had{float64(n.Used["loop_ns"]), float64(n.Used["transmit_bytes"]), float64(n.Used["sent_write"])}
			}
		}
	}
	return list, now, nil
}

// during runs the customers' tools and measures what they have while all of them run. It asks the
// daemon: the tools begin and end at different times.
func (h *Host) during(ctx context.Context, all []customer) (list []had, err error) {
	tools, stop := context.WithCancel(ctx)
	ended := make(chan error, len(all))
	for _, c := range all {
		go func() { ended <- h.flood(tools, c) }()
	}
	left := len(all)
	defer func() {
		stop()
		for ; left > 0; left-- {
			<-ended
		}
	}()
	for running := 0; running < len(all); {
		select {
		case err := <-ended:
			left--
			return nil, cmp.Or(err, errors.New("ib_write_bw ended before all ran"))
		case <-time.After(200 * time.Millisecond):
		}
		now, _, err := h.used(ctx, all)
		if err != nil {
			return nil, err
		}
		running = 0
		for _, u := range now {
			if u.messages > 0 {
				running++
			}
		}
	}
	if err := wait(ctx, qosWarm); err != nil {
		return nil, err
	}
	before, begin, err := h.used(ctx, all)
	if err != nil {
		return nil, err
	}
	if err := wait(ctx, qosTime); err != nil {
		return nil, err
	}
	list, end, err := h.used(ctx, all)
	took := end.Sub(begin).Seconds()
	for i := range list {
		u, b := &list[i], before[i]
		*u = had{(u.loop - b.loop) / took, (u.bytes - b.bytes) / took, (u.messages - b.messages) / took}
	}
	return list, err
}

// customers are n equal ones.
func customers(n int) (all []customer) {
	for i := range n {
		all = append(all, customer{name: fmt.Sprintf("t%d", i), size: 1 << 20, qps: 1 + i%4})
	}
	return all
}

// qos is what tenants have of one daemon: shares, caps, guarantees, latency.
func (t *Table) qos() part {
	p := part{name: "qos", rows: []Row{
		{What: "tenants of weights 1, 2, 4: worst share of the loop's time, error", Ours: Series{Unit: "%"}, Bound: 5, AtMost: true},
		{What: "16 equal tenants: Jain's index", Ours: Series{Unit: ""}, Bound: 0.99},
		{What: "cap of 0.1 Gb/s: error", Ours: Series{Unit: "%"}, Bound: 2, AtMost: true},
		{What: "cap of 1 Gb/s: error", Ours: Series{Unit: "%"}, Bound: 2, AtMost: true},
		{What: "cap of 10 Gb/s: error", Ours: Series{Unit: "%"}, Bound: 2, AtMost: true},
		{What: "cap of 10 000 messages a second: error", Ours: Series{Unit: "%"}, Bound: 2, AtMost: true},
		{What: "cap of 100 000 messages a second: error", Ours: Series{Unit: "%"}, Bound: 2, AtMost: true},
		{What: "cap of 500 000 messages a second: error", Ours: Series{Unit: "%"}, Bound: 2, AtMost: true},
		{What: "guarantee of a quarter, one of 16 tenants", Ours: Series{Unit: ""}, Bound: 0.95},
		{What: "one of 16 tenants, the others idle, against alone", Ours: Series{Unit: ""}, Bound: 0.97},
		{What: "send latency in class latency beside a bulk tenant, against alone", Ours: Series{Unit: ""}, Bound: 3, AtMost: true},
		{What: "bulk tenant beside one with 512 queue pairs and messages of one byte, of half of alone", Ours: Series{Unit: ""}, Bound: 0.9},
		{What: "one NIC beside 1000 idle ones, against alone", Ours: Series{Unit: ""}, Bound: 0.95},
	}}
	p.measure = func(ctx context.Context, rows []Row) error {
		probes := []Probe{t.shareError(), t.jain()}
		for _, rate := range []string{"100Mbit", "1Gbit", "10Gbit"} {
			probes = append(probes, t.capError("rate: {out: "+rate+"}", map[string]float64{"100Mbit": 1e8 / 8, "1Gbit": 1e9 / 8, "10Gbit": 1e10 / 8}[rate], 64<<10))
		}
		for _, rate := range []float64{10e3, 100e3, 500e3} {
			probes = append(probes, t.capError(fmt.Sprintf("rate: {messages: {out: %.0f}}", rate), rate, 64))
		}
		probes = append(probes, t.guarantee(), t.conservation(), t.beside(), t.misbehaving(), t.crowded())
		sources := make([]source, len(probes))
		for i := range sources {
			sources[i] = source{i, alone}
		}
		return t.fill(ctx, min(t.Rounds, 3), probes, rows, sources)
	}
	return p
}

// qosProbe measures with a daemon of its own. An error of nothing counts as a little, because a
// probe that gives 0 is tried again.
func (t *Table) qosProbe(name, unit string, all []customer, f func(context.Context, *Host) (float64, error)) Probe {
	return Probe{Name: name, Unit: unit, Measure: func(ctx context.Context) (r Reading, err error) {
		err = t.serve(ctx, all, func(h *Host) error {
			v, err := f(ctx, h)
			r.Value = max(v, 1e-6)
			return err
		})
		return r, err
	}}
}

// shareError is of the loop's time: messages and numbers of queue pairs differ.
func (t *Table) shareError() Probe {
	all := []customer{{name: "one", size: 1 << 20, qps: 1}, {name: "two", tenant: "weight: 2", size: 64 << 10, qps: 8}, {name: "four", tenant: "weight: 4", size: 4 << 10, qps: 64}}
	return t.qosProbe("shares 1:2:4", "%", all, func(ctx context.Context, h *Host) (float64, error) {
		got, err := h.during(ctx, all)
		sum, worst := 0.0, 0.0
		for _, u := range got {
			sum += u.loop
		}
		for i, u := range got {
			worst = max(worst, math.Abs(u.loop/sum*7/float64(int(1)<<i)-1))
		}
		return 100 * worst, err
	})
}

func (t *Table) jain() Probe {
	all := customers(16)
	return t.qosProbe("16 tenants", "", all, func(ctx context.Context, h *Host) (float64, error) {
		got, err := h.during(ctx, all)
		sum, squares := 0.0, 0.0
		for _, u := range got {
			sum += u.loop
			squares += u.loop * u.loop
		}
		return sum * sum / (squares * float64(len(all))), err
	})
}

// capError is how far a rate is from a cap, in bytes or, of small messages, in messages.
func (t *Table) capError(spec string, want float64, size int) Probe {
	all := []customer{{name: "one", nic: spec, size: size, qps: 16}}
	return t.qosProbe(spec, "%", all, func(ctx context.Context, h *Host) (float64, error) {
		got, err := h.during(ctx, all)
		if err != nil {
			return 0, err
		}
		v := got[0].bytes
		if size == 64 {
			v = got[0].messages
		}
		return 100 * math.Abs(v/want-1), nil
	})
}

// against measures the first customer: alone, and then with all declared, of whom the first busy
// ones run.
func (t *Table) against(ctx context.Context, all []customer, busy int, change func(alone float64)) (alone, beside float64, err error) {
	measure := func(all []customer, busy int) (v float64, err error) {
		err = t.serve(ctx, all, func(h *Host) error {
			got, err := h.during(ctx, all[:busy])
			if err == nil {
				v = got[0].bytes
			}
			return err
		})
		return v, err
	}
	if alone, err = measure(all[:1], 1); err != nil {
		return 0, 0, err
	}
	if change != nil {
		change(alone)
	}
	beside, err = measure(all, busy)
	return alone, beside, err
}

func (t *Table) guarantee() Probe {
	return Probe{Name: "guarantee of a quarter", Measure: func(ctx context.Context) (Reading, error) {
		all := customers(16)
		alone, beside, err := t.against(ctx, all, 16, func(alone float64) { all[0].nic = fmt.Sprintf("guarantee: %.0fbit", alone/4*8) })
		return Reading{Value: beside / (alone / 4)}, err
	}}
}

func (t *Table) conservation() Probe {
	return Probe{Name: "one of 16, the others idle", Measure: func(ctx context.Context) (Reading, error) {
		alone, beside, err := t.against(ctx, customers(16), 1, nil)
		return Reading{Value: beside / alone}, err
	}}
}

// crowded is a NIC beside 1000 that nobody uses.
func (t *Table) crowded() Probe {
	return Probe{Name: "beside 1000 idle NICs", Measure: func(ctx context.Context) (Reading, error) {
		alone, beside, err := t.against(ctx, customers(501), 1, nil)
		return Reading{Value: beside / alone}, err
	}}
}

// beside is the latency of a NIC of class latency beside a bulk tenant, against alone.
func (t *Table) beside() Probe {
	all := []customer{{name: "lat", nic: "class: latency, rate: {out: 1Gbit}"}, {name: "bulk", size: 1 << 20, qps: 1}}
	return t.qosProbe("class latency beside bulk", "", all, func(ctx context.Context, h *Host) (float64, error) {
		ping := func() (float64, error) {
			out, err := h.on(ctx, all[0], "ib_send_lat", "-s", "64", "-n", "3000")
			if err != nil {
				return 0, err
			}
			l, err := ParseLatency(out)
			return l.Typical, err
		}
		before, err := ping()
		if err != nil {
			return 0, err
		}
		bulk, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- h.flood(bulk, all[1]) }()
		err = wait(ctx, 2*time.Second)
		after, err1 := ping()
		stop()
		<-ended
		return after / before, errors.Join(err, err1)
	})
}

// misbehaving is what a tenant has beside one with many queue pairs and tiny messages, of half of
// what it has alone.
func (t *Table) misbehaving() Probe {
	all := []customer{{name: "good", size: 64 << 10, qps: 1}, {name: "bad", size: 1, qps: 512}}
	return t.qosProbe("beside a tenant that misbehaves", "", all, func(ctx context.Context, h *Host) (float64, error) {
		alone, err := h.during(ctx, all[:1])
		if err != nil {
			return 0, err
		}
		got, err := h.during(ctx, all)
		if err != nil {
			return 0, err
		}
		return got[0].bytes / (alone[0].bytes / 2), nil
	})
}
