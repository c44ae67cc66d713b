package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
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
	// qosSeconds is how long bandwidth tools run beside each other. Of that they measure the half
	// in the middle: meanwhile all of them run.
	qosSeconds = 8
	// qosDepth is how many bytes a customer has posted: on two processors its program may have to
	// wait for long until it can post again.
	qosDepth = 64 << 20
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

// customerRate is what ib_write_bw says of a customer.
func (h *Host) customerRate(ctx context.Context, c customer) (Bandwidth, error) {
	depth := max(min(qosDepth/c.size/max(c.qps, 1), 1024), 16)
	out, err := h.on(ctx, c, "ib_write_bw", "-D", fmt.Sprint(qosSeconds), "-s", fmt.Sprint(c.size), "-q", fmt.Sprint(max(c.qps, 1)), "-t", fmt.Sprint(depth))
	if err != nil {
		return Bandwidth{}, err
	}
	return ParseBandwidth(out)
}

// rates is what ib_write_bw says of customers that run at the same time.
func (h *Host) rates(ctx context.Context, all []customer) ([]Bandwidth, error) {
	got, errs := make([]Bandwidth, len(all)), make([]error, len(all))
	var running sync.WaitGroup
	for i, c := range all {
		running.Go(func() { got[i], errs[i] = h.customerRate(ctx, c) })
	}
	running.Wait()
	return got, errors.Join(errs...)
}

// customers are n equal ones.
func customers(n int) (all []customer) {
	for i := range n {
		all = append(all, customer{name: fmt.Sprintf("t%d", i), size: 64 << 10, qps: 1 + i%4})
	}
	return all
}

// qos is what tenants have of one daemon: shares, caps, guarantees, latency.
func (t *Table) qos() part {
	p := part{name: "qos", rows: []Row{
		{What: "tenants of weights 1, 2, 4 with equal messages: worst share of bytes, error", Ours: Series{Unit: "%"}, Bound: 5, AtMost: true},
		{What: "16 equal tenants: Jain's index", Ours: Series{Unit: ""}, Bound: 0.99},
		{What: "cap of 0.1 Gb/s: error", Ours: Series{Unit: "%"}, Bound: 2, AtMost: true},
		{What: "cap of 1 Gb/s: error", Ours: Series{Unit: "%"}, Bound: 2, AtMost: true},
		{What: "cap of 10 Gb/s: error", Ours: Series{Unit: "%"}, Bound: 2, AtMost: true},
		{What: "cap of 10 000 messages a second: error", Ours: Series{Unit: "%"}, Bound: 2, AtMost: true},
		{What: "cap of 100 000 messages a second: error", Ours: Series{Unit: "%"}, Bound: 2, AtMost: true},
		{What: "guarantee of a quarter, one of 16 tenants", Ours: Series{Unit: ""}, Bound: 0.95},
		{What: "one of 16 tenants, the others idle, against alone", Ours: Series{Unit: ""}, Bound: 0.97},
		{What: "send latency in class latency beside a bulk tenant, against alone", Ours: Series{Unit: ""}, Bound: 3, AtMost: true},
		{What: "bulk tenant beside one with 512 queue pairs and messages of one byte, of half of alone", Ours: Series{Unit: ""}, Bound: 0.9},
	}}
	p.measure = func(ctx context.Context, rows []Row) error {
		probes := []Probe{t.shareError(), t.jain()}
		for _, rate := range []string{"100Mbit", "1Gbit", "10Gbit"} {
			probes = append(probes, t.capError("rate: {out: "+rate+"}", map[string]float64{"100Mbit": 1e8 / 8, "1Gbit": 1e9 / 8, "10Gbit": 1e10 / 8}[rate], 64<<10))
		}
		for _, rate := range []float64{10e3, 100e3} {
			probes = append(probes, t.capError(fmt.Sprintf("rate: {messages: {out: %.0f}}", rate), rate, 64))
		}
		probes = append(probes, t.guarantee(), t.conservation(), t.beside(), t.misbehaving())
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

// shareError takes bytes for time: they are the same if all do the same. With other messages, and
// numbers of queue pairs, test/tenants measures the loop's time.
func (t *Table) shareError() Probe {
	all := []customer{{name: "one", size: 64 << 10, qps: 4}, {name: "two", tenant: "weight: 2", size: 64 << 10, qps: 4}, {name: "four", tenant: "weight: 4", size: 64 << 10, qps: 4}}
	return t.qosProbe("shares 1:2:4", "%", all, func(ctx context.Context, h *Host) (float64, error) {
		got, err := h.rates(ctx, all)
		sum, worst := 0.0, 0.0
		for _, b := range got {
			sum += b.Average
		}
		for i, b := range got {
			worst = max(worst, math.Abs(b.Average/sum*7/float64(int(1)<<i)-1))
		}
		return 100 * worst, err
	})
}

func (t *Table) jain() Probe {
	all := customers(16)
	return t.qosProbe("16 tenants", "", all, func(ctx context.Context, h *Host) (float64, error) {
		got, err := h.rates(ctx, all)
		sum, squares := 0.0, 0.0
		for _, b := range got {
			sum += b.Average
			squares += b.Average * b.Average
		}
		return sum * sum / (squares * float64(len(got))), err
	})
}

// capError is how far a rate is from a cap, in bytes or, of small messages, in messages.
func (t *Table) capError(spec string, want float64, size int) Probe {
	all := []customer{{name: "one", nic: spec, size: size, qps: 4}}
	return t.qosProbe(spec, "%", all, func(ctx context.Context, h *Host) (float64, error) {
		got, err := h.rates(ctx, all)
		v := got[0].Average
		if size == 64 {
			v = got[0].MessageRate
		}
		return 100 * math.Abs(v/want-1), err
	})
}

// aloneRate is the rate of a customer that has a daemon for itself.
func (t *Table) aloneRate(ctx context.Context, c customer) (v float64, err error) {
	err = t.serve(ctx, []customer{c}, func(h *Host) error {
		b, err := h.customerRate(ctx, c)
		v = b.Average
		return err
	})
	return v, err
}

func (t *Table) guarantee() Probe {
	return Probe{Name: "guarantee of a quarter", Measure: func(ctx context.Context) (r Reading, err error) {
		all := customers(16)
		whole, err := t.aloneRate(ctx, all[0])
		if err != nil {
			return r, err
		}
		all[0].nic = fmt.Sprintf("guarantee: %.0fbit", whole/4*8)
		err = t.serve(ctx, all, func(h *Host) error {
			got, err := h.rates(ctx, all)
			r.Value = got[0].Average / (whole / 4)
			return err
		})
		return r, err
	}}
}

func (t *Table) conservation() Probe {
	return Probe{Name: "one of 16, the others idle", Measure: func(ctx context.Context) (r Reading, err error) {
		all := customers(16)
		whole, err := t.aloneRate(ctx, all[0])
		if err != nil {
			return r, err
		}
		err = t.serve(ctx, all, func(h *Host) error {
			b, err := h.customerRate(ctx, all[0])
			r.Value = b.Average / whole
			return err
		})
		return r, err
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
		ended := make(chan error, 1)
		go func() {
			_, err := h.customerRate(ctx, all[1])
			ended <- err
		}()
		err = wait(ctx, qosSeconds*1e9/4)
		after, err1 := ping()
		return after / before, errors.Join(err, err1, <-ended)
	})
}

func (t *Table) misbehaving() Probe {
	all := []customer{{name: "good", size: 64 << 10, qps: 1}, {name: "bad", size: 1, qps: 512}}
	return t.qosProbe("beside a tenant that misbehaves", "", all, func(ctx context.Context, h *Host) (float64, error) {
		whole, err := h.customerRate(ctx, all[0])
		if err != nil {
			return 0, err
		}
		got, err := h.rates(ctx, all)
		return got[0].Average / (whole.Average / 2), err
	})
}
