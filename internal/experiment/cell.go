package experiment

import (
	"fmt"
	"slices"
)

// Where programs run.
const (
	Host       = "host"       // two processes on this host
	Hosts      = "hosts"      // two network namespaces and a veth pair
	Containers = "containers" // two containers with their tenants' NICs
	VMs        = "vms"        // two QEMU guests
	GuestRXE   = "guest-rxe"  // the kernel's rxe inside a guest
	Remote     = "remote"     // another machine, over ssh
)

// Settings are all of them.
var Settings = []string{Host, Hosts, Containers, VMs, GuestRXE, Remote}

// What carries the bytes.
const (
	TCP     = "tcp"     // the kernel's
	Verbs   = "verbs"   // of vrdma, in memory or by RoCEv2
	Sockets = "sockets" // TCP programs over verbs
	Kernel  = "kernel"  // verbs of a device of the kernel's, rxe or hardware
	Overlay = "overlay" // TCP over VXLAN
)

// Transports are all of them.
var Transports = []string{TCP, Verbs, Sockets, Kernel, Overlay}

// How a program waits for its completions.
const (
	Poll  = "poll"
	Event = "event"
)

// What a tool measures. Values are in seconds, bytes a second, and a second.
const (
	Latency   = "latency"
	Bandwidth = "bandwidth"
	Rate      = "rate"
)

// A Tool is what is known of one.
type Tool struct {
	Name       string
	Metric     string // the one that is drawn
	transports []string
	waits      []string
	sized      bool // has a size of message
	// RoundTrip: its latency is of a whole round trip; others give half of one.
	RoundTrip bool
}

var (
	verbsOnly = []string{Verbs, Kernel}
	socket    = []string{TCP, Sockets, Overlay}
	pollOnly  = []string{Poll}
	both      = []string{Poll, Event}
)

// tools are those that can be named in an experiment.
var tools = []Tool{
	{Name: "ib_send_bw", Metric: Bandwidth, transports: verbsOnly, waits: both, sized: true},
	{Name: "ib_write_bw", Metric: Bandwidth, transports: verbsOnly, waits: both, sized: true},
	{Name: "ib_read_bw", Metric: Bandwidth, transports: verbsOnly, waits: both, sized: true},
	{Name: "ib_send_lat", Metric: Latency, transports: verbsOnly, waits: both, sized: true},
	{Name: "ib_write_lat", Metric: Latency, transports: verbsOnly, waits: pollOnly, sized: true},
	{Name: "ib_read_lat", Metric: Latency, transports: verbsOnly, waits: both, sized: true, RoundTrip: true},
	{Name: "iperf3", Metric: Bandwidth, transports: socket, waits: []string{Event}},
	// qperf's server forks for each client, which rsockets do not survive.
	{Name: "tcp_bw", Metric: Bandwidth, transports: []string{TCP, Overlay}, waits: []string{Event}, sized: true},
	{Name: "tcp_lat", Metric: Latency, transports: []string{TCP, Overlay}, waits: []string{Event}, sized: true},
	{Name: "sockperf", Metric: Latency, transports: socket, waits: []string{Event}, sized: true},
}

// ToolNames are their names.
func ToolNames() (names []string) {
	for _, t := range tools {
		names = append(names, t.Name)
	}
	return names
}

// FindTool is a tool by its name.
func FindTool(name string) (Tool, bool) {
	i := slices.IndexFunc(tools, func(t Tool) bool { return t.Name == name })
	if i < 0 {
		return Tool{}, false
	}
	return tools[i], true
}

// A Cell is one combination: what one run of a tool measures.
type Cell struct {
	Setting   string `json:"setting"`
	Transport string `json:"transport"`
	Tool      string `json:"tool"`
	Size      Size   `json:"size,omitempty"` // 0: the tool has none
	Pairs     int    `json:"pairs"`
	MTU       int    `json:"mtu,omitempty"`      // of the link; 0: there is none
	PathMTU   int    `json:"path_mtu,omitempty"` // of verbs; 0: what the tool takes
	Rate      string `json:"rate,omitempty"`     // of the link; "": no limit
	Wait      string `json:"wait"`
}

func (c Cell) String() string {
	text := fmt.Sprintf("%s, %s, %s", c.Tool, c.Transport, c.Setting)
	if c.Size != 0 {
		text += ", " + c.Size.String()
	}
	if c.Pairs > 1 {
		text += fmt.Sprintf(", %d pairs", c.Pairs)
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
	if c.Wait == Event {
		text += ", events"
	}
	return text
}

// Cells are the combinations that make sense, each once. Socket programs always sleep, so they
// wait for events, whatever the experiment says; on one host there is no link and no MTU.
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
		if !slices.Equal(t.transports, verbsOnly) {
			c.PathMTU = 0
		}
		if !t.sized {
			c.Size = 0
		}
		if c.Setting == Host {
			c.MTU, c.Rate = 0, ""
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
							add(Cell{setting, transport, tool, size, pairs, mtu, path, rate, wait})
						})
					}
				}
			}
		}
	}
	return list
}

// ways are the combinations of what a link and a program's waiting can be.
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
