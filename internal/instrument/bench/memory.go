package bench

import (
	"context"
	"fmt"
	"strconv"

	"vrdma.dev/vrdma/internal/instrument/probe"
	"vrdma.dev/vrdma/internal/instrument/speedtable"
)

// sleepingThreads is how many other threads sleep while a program registers in a loop.
var sleepingThreads = []int{16, 256, 1000}

// sharedKinds are the kinds of shared memory, as programs/memory.c names them.
var sharedKinds = []struct{ kind, name string }{
	{"anonymous", "shared anonymous memory"}, {"shm", "POSIX shm"}, {"sysv", "SysV shm"},
}

// memorySizes are the message sizes.
var memorySizes = []struct {
	bytes int
	name  string
}{{bulkSize, "64 KiB"}, {1 << 20, "1 MiB"}}

// A memoryTable collects probes and the rows that use them.
type memoryTable struct {
	probes  []probe.Probe
	rows    []speedtable.Row
	sources []source
}

// probe adds a probe and returns its index.
func (m *memoryTable) probe(p probe.Probe) int {
	m.probes = append(m.probes, p)
	return len(m.probes) - 1
}

// row adds a row of one probe or of two.
func (m *memoryTable) row(r speedtable.Row, ours, against int) {
	m.rows = append(m.rows, r)
	m.sources = append(m.sources, source{ours, against})
}

// describe adds all rows and probes. run makes a probe of programs/memory.c, tcp one of TCP.
func (m *memoryTable) describe(run func(unit string, args ...string) probe.Probe, tcp func(size int) probe.Probe) {
	region := strconv.Itoa(regionSize)
	first, again := m.probe(run("s", "first", region)), m.probe(run("s", "again", region))
	m.row(speedtable.Row{What: "first registration of 256 MiB", Ours: speedtable.Series{Unit: "s"}, AtMost: true, Unbounded: true}, first, alone)
	m.row(ratioAtMost("registering 256 MiB again, against the first time", 0.05), again, first)

	none := m.probe(run("s", "turn", strconv.Itoa(bulkSize), "0"))
	m.row(speedtable.Row{What: "registering and deregistering 64 KiB, one thread", Ours: speedtable.Series{Unit: "s"}, AtMost: true, Unbounded: true}, none, alone)
	for _, n := range sleepingThreads {
		p := m.probe(run("s", "turn", strconv.Itoa(bulkSize), strconv.Itoa(n)))
		m.row(speedtable.Row{What: fmt.Sprintf("registering and deregistering 64 KiB, %d more threads asleep, against none", n), Against: &speedtable.Series{}, AtMost: true, Unbounded: true}, p, none)
	}

	for _, size := range memorySizes {
		move := func(from, to string) int { return m.probe(run("B/s", "bandwidth", from, to, strconv.Itoa(size.bytes))) }
		private, net := move("private", "private"), m.probe(tcp(size.bytes))
		what := "write bandwidth, " + size.name + ", "
		m.row(speedtable.Row{What: what + "private memory, against TCP, one program", Against: &speedtable.Series{}, Unbounded: true}, private, net)
		for _, k := range sharedKinds {
			m.row(ratioRow(what+k.name+", against private memory", 0.8), move(k.kind, k.kind), private)
		}
		m.row(ratioRow(what+"into foreign memory, against TCP", 2.5), move("private", "file"), net)
		m.row(ratioRow(what+"out of foreign memory, against TCP", 2.5), move("file", "private"), net)
		m.row(ratioRow(what+"both sides foreign, against TCP", 1.5), move("file", "file"), net)
	}

	latency := func(from, to string) int { return m.probe(run("s", "latency", from, to)) }
	own := latency("private", "private")
	for _, c := range []struct{ from, to, name string }{
		{"private", "file", "into foreign memory"}, {"file", "private", "out of foreign memory"}, {"anonymous", "anonymous", "shared anonymous memory"},
	} {
		m.row(speedtable.Row{What: "write latency, 64 B, " + c.name + ", against private memory", Against: &speedtable.Series{}, AtMost: true, Unbounded: true}, latency(c.from, c.to), own)
	}
}

// memory measures registration, and transfers from and to each kind of memory.
func (t *Table) memory() part {
	var described memoryTable
	described.describe(func(string, ...string) probe.Probe { return probe.Probe{} }, func(int) probe.Probe { return probe.Probe{} })
	return part{
		name: "memory",
		rows: described.rows,
		measure: func(ctx context.Context, rows []speedtable.Row) error {
			programs, err := t.Lab.Compile(ctx, "memory")
			if err != nil {
				return err
			}
			h, _, err := t.here(ctx)
			if err != nil {
				return err
			}
			var m memoryTable
			m.describe(func(unit string, args ...string) probe.Probe {
				argv := h.Under(append([]string{programs["memory"]}, args...)...)
				name := "memory"
				for _, a := range args {
					name += " " + a
				}
				return probe.Baseline(t.Lab, name, unit, argv[0], argv[1:]...)
			}, func(size int) probe.Probe { return probe.Qperf(h.Loopback(), "tcp_bw", "bw", "B/s", size) })
			return t.fill(ctx, t.Rounds, m.probes, rows, m.sources)
		},
	}
}
