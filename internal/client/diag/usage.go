package diag

import (
	"os"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/registry"
	"vrdma.dev/vrdma/internal/tenancy/meter"
)

// This file reports the usage of NICs, for `vrdma top`, `vrdma usage` and the status. At a NIC's socket a caller sees only that
// NIC, and not even the existence of others. At the tenants' socket it sees the tenants that it administers.

// sees reports whether a view includes a key.
func (d *Service) sees(v *View, k meter.Key) bool {
	switch {
	case v.All:
		return true
	case v.Tenants:
		return d.cfg.Clients.Administers(v, k.Tenant)
	}
	return v.NIC != nil && KeyOf(v.NIC) == k
}

// fresh is the maximum age of the numbers that a tool gets.
const fresh = 50 * time.Millisecond

// nics returns the existing NICs in a view, with their usage.
func (d *Service) nics(v *View) (out []protocol.NICStatus) {
	for _, n := range d.used(v) {
		if n.Live && n.Tenant != meter.System {
			out = append(out, n)
		}
	}
	return out
}

// used returns the meter's totals in the view.
func (d *Service) used(v *View) (out []protocol.NICStatus) {
	if d.cfg.Collector == nil {
		return nil
	}
	d.cfg.Collector.Refresh(fresh)
	addresses, containers, roce := make(map[meter.Key][]string), make(map[meter.Key]string), make(map[meter.Key]string)
	if d.cfg.NICs != nil {
		in := d.cfg.Clients.Containers()
		for _, n := range d.cfg.NICs.All() {
			var list []string
			for _, g := range n.Device.Face().GIDs {
				list = append(list, g.GID.Addr().String())
			}
			addresses[KeyOf(n)] = list
			containers[KeyOf(n)] = in[n]
			if n.Frames != nil {
				roce[KeyOf(n)] = whoseRoCE(n.Frames())
			}
		}
	}
	for _, t := range d.cfg.Collector.Meter().Totals() {
		if !d.sees(v, t.Key) {
			continue
		}
		out = append(out, protocol.NICStatus{
			Tenant: t.Tenant, Network: t.Network, NIC: t.NIC, Live: t.Live, Addresses: addresses[t.Key], Container: containers[t.Key], RoCE: roce[t.Key],
			Sessions: t.Now.Sessions, QPs: t.Now.QPs, Connections: t.Now.Connections, Registered: t.Now.Registered,
			Used: named(&t.Usage), At: t.At, Delays: delays(&t.Delays),
		})
	}
	return out
}

// whoseRoCE returns the value of protocol.NICStatus.RoCE.
func whoseRoCE(f registry.Frames) string {
	switch {
	case !f.Attached:
		return ""
	case f.RoCE:
		return "daemon"
	}
	return "card"
}

// named returns usage by column name, without zeros.
func named(u *meter.Usage) map[string]uint64 {
	m := make(map[string]uint64)
	for i, v := range u {
		if v != 0 {
			m[meter.Column(i).String()] = v
		}
	}
	return m
}

// delays returns the counts that are not zero.
func delays(d *nic.Delays) (out []protocol.DelayStatus) {
	for i, n := range d {
		if n != 0 {
			out = append(out, protocol.DelayStatus{BelowNS: int64(d.Below(i)), Count: n})
		}
	}
	return out
}

// usageState is the heap for one row, as a record and as JSON.
const usageState = 4 << 10

// sendTop answers with the counters of every NIC.
func (d *Service) sendTop(c *protocol.Conn, v *View) error {
	rows := 1
	if (v.All || v.Tenants) && d.cfg.NICs != nil {
		rows += len(d.cfg.NICs.All())
	}
	return d.sendCharged(c, v, rows, func() any {
		t := protocol.Top{Started: d.started, NICs: d.used(v), Time: time.Now()}
		if t.NICs == nil {
			t.NICs = []protocol.NICStatus{}
		}
		// A tenant must not see the daemon's total work.
		if v.All || v.NIC != nil && v.NIC.Name == registry.Default {
			t.Pid, t.CPU = os.Getpid(), ProcessTime().Seconds()
			if d.cfg.Operation != nil {
				if loops, _ := d.cfg.Operation.Loops(); len(loops) > 1 {
					t.Loops = loops
				}
			}
		}
		return t
	})
}

// sendUsage answers with records.
func (d *Service) sendUsage(c *protocol.Conn, v *View, req *protocol.ControlRequest) error {
	var records []meter.Record
	if d.cfg.Collector != nil {
		d.cfg.Collector.Refresh(fresh)
		for _, r := range d.cfg.Collector.Meter().Records(req.Since, req.Tenant) {
			if d.sees(v, r.Key) {
				records = append(records, r)
			}
		}
	}
	return d.sendCharged(c, v, len(records), func() any {
		u := protocol.UsageReport{Records: []protocol.UsageRecord{}, Columns: meter.Columns()}
		if d.cfg.Collector == nil {
			u.Error = "this daemon meters nothing"
		}
		for _, r := range records {
			u.Records = append(u.Records, protocol.UsageRecord{
				Tenant: r.Tenant, Network: r.Network, NIC: r.NIC, From: r.From, To: r.To, Used: named(&r.Usage),
			})
		}
		return u
	})
}

// sendCharged sends an answer of about rows rows. It is charged while it is in memory, like a status.
func (d *Service) sendCharged(c *protocol.Conn, v *View, rows int, make func() any) error {
	bill := budget.Bill{budget.State: 16<<10 + uint64(rows)*usageState}
	if err := v.Who.Account.Charge(bill); err != nil {
		d.cfg.Clients.Overdrawn(err)
		return c.SendJSON(protocol.ControlReply{Error: err.Error()})
	}
	defer v.Who.Account.Refund(bill)
	c.SetWriteDeadline(time.Now().Add(readTime))
	defer c.SetWriteDeadline(time.Time{})
	return c.SendJSON(make())
}

// ProcessTime returns the processor time of this process.
func ProcessTime() time.Duration {
	var r unix.Rusage
	unix.Getrusage(unix.RUSAGE_SELF, &r) // cannot fail
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
