package experiment

import (
	"fmt"
	"slices"
	"strings"
)

// Settings: where programs run.
const (
	Host       = "host"       // two processes on this host
	Hosts      = "hosts"      // two network namespaces and a veth pair
	Containers = "containers" // two containers, each with a NIC of one tenant
	VMs        = "vms"        // two QEMU guests
	VMsApart   = "vms-apart"  // two QEMU guests, each on a host of its own
	GuestRXE   = "guest-rxe"  // the kernel's rxe inside a guest
	Remote     = "remote"     // another machine, over ssh
)

// Settings are all settings.
var Settings = []string{Host, Hosts, Containers, VMs, VMsApart, GuestRXE, Remote}

// Guests reports whether both sides of a setting run in emulated guests.
func Guests(setting string) bool { return setting == VMs || setting == VMsApart }

// Transports: what carries the bytes.
const (
	TCP     = "tcp"      // the kernel's sockets; UDP where the tool says so
	Verbs   = "verbs"    // vrdma's device, in memory or over RoCEv2
	Sockets = "sockets"  // TCP programs over verbs
	Kernel  = "kernel"   // verbs of a device of the kernel, rxe or hardware
	Overlay = "overlay"  // TCP over VXLAN
	Vhost   = "vhost"    // TCP of guests through the daemon's switch, by vhost-user
	OVS     = "ovs-dpdk" // TCP of guests through Open vSwitch with DPDK
)

// Transports are all transports.
var Transports = []string{TCP, Verbs, Sockets, Kernel, Overlay, Vhost, OVS}

// How a program waits for completions.
const (
	Poll  = "poll"
	Event = "event"
)

// Metrics: what a tool measures. Values are in seconds, bytes/s and 1/s.
const (
	Latency   = "latency"
	Bandwidth = "bandwidth"
	Rate      = "rate"
	Time      = "time" // of a whole transfer
	CPU       = "cpu"  // processors that all roles used
)

// Metrics are all metrics, in the order in which they are drawn.
var Metrics = []string{Latency, Bandwidth, Rate, Time, CPU}

// A Tool is what is known about a measuring tool.
type Tool struct {
	Name       string
	Metric     string   // drawn unless an experiment names others
	Also       []string // further metrics
	transports []string
	waits      []string
	sized      bool // its messages have a size
	fixed      Size // its only size; 0: it has none, or is sized
	// RoundTrip means that its latency is of a whole round trip. Others print half of one.
	RoundTrip bool
	// Asks means that it only queries the device and moves no data.
	Asks bool
	// spins means that it polls for some microseconds before it sleeps, as completion queues of package verbs do.
	spins bool
	// Operations means that its latency is of an application's operation, not of a message.
	Operations bool
}

// Gives reports whether a tool measures a metric. Processor time is measured in every run.
func (t *Tool) Gives(metric string) bool {
	return metric == t.Metric || metric == CPU || slices.Contains(t.Also, metric)
}

// Better reports whether a higher value of a metric is better.
func Better(metric string) (higher bool) { return metric == Bandwidth || metric == Rate }

var (
	verbsOnly = []string{Verbs, Kernel}
	socket    = []string{TCP, Sockets, Overlay, Vhost, OVS}
	kernels   = []string{TCP, Overlay, Vhost, OVS} // the kernel's sockets only
	pollOnly  = []string{Poll}
	eventOnly = []string{Event}
	both      = []string{Poll, Event}
	rated     = []string{Rate}
)

// tools are the tools that an experiment can name.
var tools = []Tool{
	{Name: "ib_send_bw", Metric: Bandwidth, Also: rated, transports: verbsOnly, waits: both, sized: true},
	{Name: "ib_write_bw", Metric: Bandwidth, Also: rated, transports: verbsOnly, waits: both, sized: true},
	{Name: "ib_read_bw", Metric: Bandwidth, Also: rated, transports: verbsOnly, waits: both, sized: true},
	{Name: "ib_send_lat", Metric: Latency, transports: verbsOnly, waits: both, sized: true},
	{Name: "ib_write_lat", Metric: Latency, transports: verbsOnly, waits: pollOnly, sized: true},
	{Name: "ib_read_lat", Metric: Latency, transports: verbsOnly, waits: both, sized: true, RoundTrip: true},
	{Name: "ib_atomic_bw", Metric: Rate, Also: []string{Bandwidth}, transports: verbsOnly, waits: both, fixed: 8},
	{Name: "ib_atomic_lat", Metric: Latency, transports: verbsOnly, waits: both, fixed: 8, RoundTrip: true},
	{Name: "iperf3", Metric: Bandwidth, transports: socket, waits: eventOnly},
	// qperf's server forks for each client, which rsockets cannot do.
	{Name: "tcp_bw", Metric: Bandwidth, transports: kernels, waits: eventOnly, sized: true},
	{Name: "tcp_lat", Metric: Latency, transports: kernels, waits: eventOnly, sized: true},
	{Name: "rc_bw", Metric: Bandwidth, Also: rated, transports: verbsOnly, waits: both, sized: true},
	{Name: "rc_bi_bw", Metric: Bandwidth, Also: rated, transports: verbsOnly, waits: both, sized: true},
	{Name: "rc_rdma_read_bw", Metric: Bandwidth, Also: rated, transports: verbsOnly, waits: both, sized: true},
	{Name: "rc_rdma_write_bw", Metric: Bandwidth, Also: rated, transports: verbsOnly, waits: both, sized: true},
	{Name: "rc_lat", Metric: Latency, transports: verbsOnly, waits: both, sized: true},
	{Name: "rc_rdma_read_lat", Metric: Latency, transports: verbsOnly, waits: both, sized: true, RoundTrip: true},
	{Name: "rc_rdma_write_lat", Metric: Latency, transports: verbsOnly, waits: both, sized: true},
	{Name: "sockperf", Metric: Latency, transports: socket, waits: eventOnly, sized: true},
	// Sockets that do not block: both sides poll, and keep a processor each awake.
	{Name: "sockperf_poll", Metric: Latency, transports: kernels, waits: pollOnly, sized: true},
	{Name: "sockperf_bw", Metric: Bandwidth, Also: rated, transports: socket, waits: eventOnly, sized: true},
	{Name: "sockperf_udp", Metric: Latency, transports: kernels, waits: eventOnly, sized: true},
	{Name: "sockperf_udp_bw", Metric: Bandwidth, Also: rated, transports: kernels, waits: eventOnly, sized: true},
	{Name: "NPtcp", Metric: Bandwidth, Also: []string{Latency}, transports: socket, waits: eventOnly, sized: true},
	{Name: "NPopenmpi", Metric: Bandwidth, Also: []string{Latency}, transports: []string{TCP, Verbs, Overlay, Vhost}, waits: pollOnly, sized: true},
	{Name: "mpi_transfer", Metric: Time, Also: []string{Bandwidth}, transports: []string{TCP, Verbs, Overlay, Vhost}, waits: pollOnly, sized: true},
	{Name: "cmtime", Metric: Rate, transports: verbsOnly, waits: eventOnly},
	{Name: "ibv_devinfo", Metric: Bandwidth, transports: []string{Verbs}, waits: eventOnly, Asks: true},
	{Name: "kv_update", Metric: Latency, Also: rated, transports: []string{Verbs}, waits: both, spins: true, Operations: true},
	{Name: "kv_rpc", Metric: Latency, Also: rated, transports: []string{Verbs}, waits: both, spins: true, Operations: true},
	{Name: "kv_read", Metric: Latency, Also: rated, transports: []string{Verbs}, waits: both, spins: true, Operations: true},
	{Name: "kv_tcp", Metric: Latency, Also: rated, transports: []string{TCP}, waits: eventOnly, Operations: true},
	{Name: "vrdma_cp", Metric: Time, Also: []string{Bandwidth}, transports: []string{TCP, Verbs}, waits: eventOnly, sized: true, spins: true},
	{Name: "fio_rdma", Metric: Bandwidth, Also: rated, transports: verbsOnly, waits: eventOnly, sized: true},
}

// ToolNames returns the names of all tools.
func ToolNames() (names []string) {
	for _, t := range tools {
		names = append(names, t.Name)
	}
	return names
}

// FindTool returns the tool of this name.
func FindTool(name string) (Tool, bool) {
	i := slices.IndexFunc(tools, func(t Tool) bool { return t.Name == name })
	if i < 0 {
		return Tool{}, false
	}
	return tools[i], true
}

// A Cell is one combination of an experiment's axes: what one run of a tool measures.
type Cell struct {
	Setting   string `json:"setting"`
	Transport string `json:"transport"`
	Tool      string `json:"tool"`
	Size      Size   `json:"size,omitempty"` // 0: the tool has none
	Pairs     int    `json:"pairs"`
	MTU       int    `json:"mtu,omitempty"`      // of the link; 0: no link
	PathMTU   int    `json:"path_mtu,omitempty"` // of verbs; 0: the tool's choice
	Rate      string `json:"rate,omitempty"`     // of the link; "": no limit
	Wait      string `json:"wait"`
	// PerSide is how many containers or guests each side has, over which pairs are distributed; 0: one.
	PerSide int `json:"per_side,omitempty"`
	// Share is the limit of each server in percent of a processor; 0: no limit.
	Share int `json:"share,omitempty"`
	// QPs is how many queue pairs each program has; 0: one.
	QPs int `json:"queue_pairs,omitempty"`
	// Delay is the link's delay in each direction; "": none.
	Delay string `json:"delay,omitempty"`
}

// ContainersPerSide is how many containers or guests each side has.
func (c Cell) ContainersPerSide() int { return max(c.PerSide, 1) }

// Sides describes how many containers or guests a side has; "": one.
func (c Cell) Sides() string {
	if c.PerSide == 0 {
		return ""
	}
	return fmt.Sprintf("%d %s a side", c.PerSide, map[string]string{Containers: "containers", VMs: "guests"}[c.Setting])
}

// How a program of a cell really waited. The axis says what the tool was told.
const (
	Polls  = "polls"
	Sleeps = "sleeps"
	Spins  = "polls, then sleeps"
)

// Waiting says how the programs wait for the other side. rsockets, which carry transport sockets, poll before they sleep, and so do
// completion queues of package verbs unless the program polls all the time.
func (c Cell) Waiting() string {
	t, _ := FindTool(c.Tool)
	switch {
	case c.Wait == Poll && c.Transport != Sockets:
		return Polls
	case c.Transport == Sockets || t.spins && c.Transport == Verbs:
		return Spins
	}
	return Sleeps
}

func (c Cell) String() string {
	text := fmt.Sprintf("%s, %s, %s", c.Tool, c.Transport, c.Setting)
	if c.Size != 0 {
		text += ", " + c.Size.String()
	}
	if c.Pairs > 1 {
		text += fmt.Sprintf(", %d pairs", c.Pairs)
	}
	if sides := c.Sides(); sides != "" {
		text += ", " + sides
	}
	if c.QPs != 0 {
		text += fmt.Sprintf(", %d queue pairs each", c.QPs)
	}
	if c.MTU != 0 {
		text += fmt.Sprintf(", MTU %d", c.MTU)
	}
	if c.PathMTU != 0 {
		text += fmt.Sprintf(", path MTU %d", c.PathMTU)
	}
	if c.Rate != "" {
		text += ", link of " + c.Rate
	}
	if c.Delay != "" {
		text += ", delay of " + c.Delay
	}
	if c.Share != 0 {
		text += fmt.Sprintf(", %d %% of a processor for the server", c.Share)
	}
	if c.Wait == Event {
		text += ", events"
	}
	return text
}

// Cells returns the meaningful combinations, each once. Socket programs always sleep, so they wait for events. One host has no link
// and no MTU.
func (e *Experiment) Cells() []Cell {
	s := &e.Spec
	var list []Cell
	seen := make(map[Cell]bool)
	add := func(c Cell) {
		t, _ := FindTool(c.Tool)
		if !slices.Contains(t.transports, c.Transport) {
			return
		}
		if len(t.waits) == 1 && t.waits[0] == Event {
			c.Wait = Event
		}
		if !slices.Contains(t.waits, c.Wait) {
			return
		}
		if !strings.HasPrefix(c.Tool, "ib_") {
			c.PathMTU = 0
		}
		if !t.sized {
			c.Size = t.fixed
		}
		// perftest's latency tools have one queue pair.
		if c.QPs == 1 || !strings.HasPrefix(c.Tool, "ib_") || t.Metric == Latency {
			c.QPs = 0
		}
		if c.Transport == Vhost && !Guests(c.Setting) || c.Transport == OVS && c.Setting != VMs {
			return // only guests have such a card
		}
		if c.Transport == TCP && c.Setting == VMsApart {
			return // the tap cards are connected on one host only
		}
		if c.PerSide == 1 || c.Setting != Containers && c.Setting != VMs {
			c.PerSide = 0
		}
		c.Pairs *= c.ContainersPerSide()
		if c.Share == 100 || c.Setting != Host && c.Setting != Hosts {
			c.Share = 0
		}
		if !linked(c.Setting) {
			c.MTU, c.Rate, c.Delay = 0, "", ""
			if c.Transport == Overlay {
				return // there is no link under it
			}
		}
		if !seen[c] {
			seen[c] = true
			list = append(list, c)
		}
	}
	for _, setting := range s.Settings {
		for _, transport := range s.Transports {
			for _, tool := range s.Tools {
				for _, size := range s.Sizes {
					for _, pairs := range s.Pairs {
						s.ways(func(mtu, path int, rate, wait string) {
							for _, each := range s.PerSide {
								for _, share := range s.Share {
									for _, qps := range s.QueuePairs {
										for _, delay := range s.Delay {
											add(Cell{setting, transport, tool, size, pairs, mtu, path, rate, wait, each, share, qps, delay})
										}
									}
								}
							}
						})
					}
				}
			}
		}
	}
	return list
}

// linked reports whether a setting has a link whose MTU and rate can be set.
func linked(setting string) bool { return setting == Hosts || setting == Containers }

// ways calls f with the combinations of link and waiting.
func (s *Spec) ways(f func(mtu, path int, rate, wait string)) {
	for _, mtu := range s.MTU {
		for _, path := range s.PathMTU {
			for _, rate := range s.Rate {
				for _, wait := range s.Wait {
					f(mtu, path, rate, wait)
				}
			}
		}
	}
}
