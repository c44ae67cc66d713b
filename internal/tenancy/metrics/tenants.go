package metrics

import (
	"cmp"
	"slices"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/tenancy/meter"
)

// mostNICs bounds the NICs with a label of their own.
const mostNICs = 256

// other is the label of NICs without one. No NIC can have this name.
const other = "_other"

// A group is what one set of series describes.
type group struct {
	tenant, network, nic string
	used                 meter.Usage
	now                  nic.Holdings
}

// A labeller decides which NICs have a label of their own. A NIC keeps its label until it is deleted, and its values
// are then added to the others', so that no sum ever falls. A NIC that was created when all labels were in use does not
// get one later.
type labeller struct {
	own   map[meter.Key]bool
	known map[meter.Key]bool // existing NICs, with a label or without
}

// label assigns labels to the existing NICs.
func (l *labeller) label(totals []meter.Total) {
	live := make(map[meter.Key]bool)
	for _, t := range totals {
		if t.Live {
			live[t.Key] = true
		}
	}
	keep := make(map[meter.Key]bool)
	for k := range l.own {
		if live[k] {
			keep[k] = true
		}
	}
	for _, t := range totals {
		if t.Live && t.NIC != "" && !l.known[t.Key] && len(keep) < mostNICs {
			keep[t.Key] = true
		}
	}
	l.own, l.known = keep, live
}

// groups sums totals up by tenant and network and, if l is not nil, by NIC.
func groups(totals []meter.Total, l *labeller) []*group {
	if l != nil {
		l.label(totals)
	}
	at := make(map[meter.Key]*group)
	for i := range totals {
		t := &totals[i]
		k := meter.Key{Tenant: t.Tenant, Network: t.Network}
		if l != nil {
			if k.NIC = other; l.own[t.Key] {
				k.NIC = t.NIC
			}
		}
		g := at[k]
		if g == nil {
			g = &group{tenant: k.Tenant, network: k.Network, nic: k.NIC}
			at[k] = g
		}
		for c, v := range t.Usage {
			g.used[c] += v
		}
		g.now.Sessions += t.Now.Sessions
		g.now.QPs += t.Now.QPs
		g.now.Connections += t.Now.Connections
		g.now.Registered += t.Now.Registered
	}
	out := make([]*group, 0, len(at))
	for _, g := range at {
		out = append(out, g)
	}
	slices.SortFunc(out, func(a, b *group) int {
		return cmp.Or(cmp.Compare(a.tenant, b.tenant), cmp.Compare(a.network, b.network), cmp.Compare(a.nic, b.nic))
	})
	return out
}

// labels are the labels of every series of g, and more.
func (g *group) labels(more ...string) []string {
	l := append(make([]string, 0, 6+len(more)), "tenant", g.tenant, "network", g.network)
	if g.nic != "" {
		l = append(l, "nic", g.nic)
	}
	return append(l, more...)
}

// tenants writes the usage and the state of tenants.
func (p *page) tenants(list []*group) {
	simple := func(name, kind, help string, of func(*group) float64) {
		p.family(name, kind, help)
		for _, g := range list {
			if g.tenant != meter.System {
				p.sample(of(g), g.labels()...)
			}
		}
	}
	column := func(name, help string, c meter.Column, scale float64) {
		simple(name, "counter", help, func(g *group) float64 { return float64(g.used[c]) / scale })
	}
	column("vrdma_transmit_bytes_total", "Bytes of payload sent.", meter.TransmitBytes, 1)
	column("vrdma_receive_bytes_total", "Bytes of payload received.", meter.ReceiveBytes, 1)
	column("vrdma_transmit_packets_total", "Packets sent.", meter.TransmitPackets, 1)
	column("vrdma_receive_packets_total", "Packets received.", meter.ReceivePackets, 1)
	column("vrdma_ethernet_transmit_bytes_total", "Bytes of Ethernet frames sent by virtual machines and containers.", meter.FrameBytesOut, 1)
	column("vrdma_ethernet_receive_bytes_total", "Bytes of Ethernet frames received by virtual machines and containers.", meter.FrameBytesIn, 1)
	column("vrdma_retransmitted_packets_total", "Packets retransmitted.", meter.Retransmitted, 1)
	column("vrdma_connections_total", "Queue pairs that were connected to a peer.", meter.Connections, 1)
	column("vrdma_loop_seconds_total", "Time that the daemon's loop spent on the NIC.", meter.LoopTime, 1e9)
	column("vrdma_ethernet_seconds_total", "Processor time for Ethernet frames of virtual machines and containers.", meter.FrameTime, 1e9)
	column("vrdma_memory_byte_seconds_total", "Registered memory multiplied by time, in byte-seconds.", meter.MemoryTime, 1)

	p.family("vrdma_throttled_seconds_total", "counter", "Time in which a rate cap delayed traffic that leaves (out) or arrives (in).")
	for _, g := range list {
		if g.tenant != meter.System {
			p.sample(float64(g.used[meter.ThrottledOut])/1e9, g.labels("direction", "out")...)
			p.sample(float64(g.used[meter.ThrottledIn])/1e9, g.labels("direction", "in")...)
		}
	}
	p.family("vrdma_messages_total", "counter", "Messages by operation: requests sent (out) and requests of peers executed (in).")
	for _, g := range list {
		for o := range transport.NumOps {
			if g.tenant != meter.System {
				p.sample(float64(g.used[meter.Sent(o)]), g.labels("direction", "out", "op", o.String())...)
				p.sample(float64(g.used[meter.Rcvd(o)]), g.labels("direction", "in", "op", o.String())...)
			}
		}
	}
	p.family("vrdma_dropped_packets_total", "counter", "Packets dropped, by reason. Tenant _system has those whose NIC is unknown.")
	for _, g := range list {
		for r := range nic.NumReasons {
			p.sample(float64(g.used[meter.Drops(r)]), g.labels("reason", r.String())...)
		}
	}
	p.family("vrdma_denied_total", "counter", "Operations refused with an error to the program, by reason.")
	for _, g := range list {
		for d := range nic.NumRefusals {
			if g.tenant != meter.System {
				p.sample(float64(g.used[meter.Refusals(d)]), g.labels("reason", d.String())...)
			}
		}
	}
	simple("vrdma_sessions", "gauge", "Open devices.", func(g *group) float64 { return float64(g.now.Sessions) })
	simple("vrdma_queue_pairs", "gauge", "Queue pairs.", func(g *group) float64 { return float64(g.now.QPs) })
	simple("vrdma_connections", "gauge", "Queue pairs that are connected to a peer.", func(g *group) float64 { return float64(g.now.Connections) })
	simple("vrdma_registered_bytes", "gauge", "Registered memory in bytes.", func(g *group) float64 { return float64(g.now.Registered) })
}
