package testbed

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"vrdma.dev/vrdma/internal/client/protocol"
)

// A Host is where one side of a measurement runs: this machine, or a network namespace
// that stands for another one. It has an address and may have a daemon.
type Host struct {
	Socket string // of its daemon
	IP     string // where its servers are reached

	Lab        *Lab
	NIC        string   // the declared NIC that programs use; empty: the default one
	Enter      []string // what a command is run with to be there; nil: here
	PID        int      // a process whose network is the host's; 0: ourselves
	Interface  string   // the interface to others; empty: eth0 in a namespace, lo here
	Container  string   // the name of the container that it is; its NIC is mounted there
	Agent      *Agent   // another machine's; nil: this one
	DaemonSide *Host    // a guest's NIC as this machine's daemon has it; nil: it is no guest
}

// Vrdma is where the product is on the host.
func (h *Host) Vrdma() string {
	if h.Agent != nil {
		return h.Agent.vrdma
	}
	return h.Lab.Vrdma
}

// Link is the interface to others.
func (h *Host) Link() string {
	switch {
	case h.Interface != "":
		return h.Interface
	case h.PID != 0:
		return "eth0"
	}
	return "lo"
}

// At is argv on the host.
func (h *Host) At(argv ...string) []string {
	return append(h.Enter[:len(h.Enter):len(h.Enter)], argv...)
}

// inNetwork is argv in the network of a container, and not in the container.
func (h *Host) inNetwork(argv ...string) []string {
	if h.Container == "" {
		return h.At(argv...)
	}
	return append([]string{"nsenter", "--target", fmt.Sprint(h.PID), "--net", "--"}, argv...)
}

// inNetworkWithDevice is outside for whom goes inside by itself, where the device is; with the device if there is no container.
func (h *Host) inNetworkWithDevice(argv ...string) []string {
	if h.Container == "" {
		return h.Under(argv...)
	}
	return h.inNetwork(argv...)
}

// Under is argv on the host, with its device.
func (h *Host) Under(argv ...string) []string {
	if h.Container != "" {
		return h.At(argv...)
	}
	run := []string{h.Lab.Vrdma, "run", "--quiet", "--socket", h.Socket}
	if h.NIC != "" {
		run = append(run, "--nic", h.NIC)
	}
	return h.At(append(append(run, "--"), argv...)...)
}

// WithNIC is the host with a declared NIC.
func (h *Host) WithNIC(nic string) *Host {
	m := *h
	m.NIC = nic
	return &m
}

// Sockets is argv on the host, its TCP connections carried over RDMA.
func (h *Host) Sockets(argv ...string) []string {
	return h.At(append([]string{h.Lab.Vrdma, "run", "--quiet", "--sockets", "--socket", h.Socket, "--"}, argv...)...)
}

// ListensTCP reports whether somebody on the host listens on the TCP port. It looks at
// the kernel's table: the tools accept only one connection, and that is the client's.
func (h *Host) ListensTCP(port int) func() bool {
	who := "self"
	if h.PID != 0 {
		who = fmt.Sprint(h.PID)
	}
	return func() bool {
		for _, table := range []string{"tcp", "tcp6"} {
			text, err := os.ReadFile(filepath.Join("/proc", who, "net", table))
			if err == nil && hasListener(string(text), port) {
				return true
			}
		}
		return false
	}
}

// hasListener reads /proc/net/tcp.
func hasListener(table string, port int) bool { return hasSocket(table, port, "0A") }

// hasSocket reads a table of sockets for one in a state.
func hasSocket(table string, port int, state string) bool {
	want := fmt.Sprintf(":%04X", port)
	for line := range strings.Lines(table) {
		words := strings.Fields(line)
		if len(words) > 3 && words[3] == state && strings.HasSuffix(words[1], want) {
			return true
		}
	}
	return false
}

// ReceivesUDP reports whether somebody on the host has a UDP socket of this port.
func (h *Host) ReceivesUDP(port int) func() bool {
	who := "self"
	if h.PID != 0 {
		who = fmt.Sprint(h.PID)
	}
	return func() bool {
		text, err := os.ReadFile(filepath.Join("/proc", who, "net", "udp"))
		return err == nil && hasSocket(string(text), port, "07")
	}
}

// afterDelay is for a server of the kernel's rdma_cm, whose listeners are in no table: half a second after it began.
func (h *Host) afterDelay(int) func() bool {
	begin := time.Now()
	return func() bool { return time.Since(begin) > 500*time.Millisecond }
}

// ListensCM reports whether somebody listens on a port of rdma_cm's, at the host's daemon.
func (h *Host) ListensCM(port int) func() bool {
	suffix := fmt.Sprintf(":%d", port)
	return func() bool {
		status, err := h.Status(context.Background())
		if err != nil {
			return false
		}
		for _, c := range status.Connections {
			if c.State == "LISTEN" && strings.HasSuffix(c.Local, suffix) {
				return true
			}
		}
		return false
	}
}

// Listens reports whether somebody listens on a port, whichever way.
func (h *Host) Listens(port int) func() bool {
	over, past := h.ListensCM(port), h.ListensTCP(port)
	return func() bool { return over() || past() }
}

// Status asks the host's daemon. A program on the host does, because a daemon shows
// its programs only to their own user, who has another number there.
func (h *Host) Status(ctx context.Context) (*protocol.Status, error) {
	argv := []string{h.Lab.Vrdma, "status", "--socket", h.Socket, "-o", "json"}
	if h.Container == "" { // vrdma is not in a container
		argv = h.At(argv...)
	}
	out, err := h.Lab.Run(ctx, argv...)
	if err != nil {
		return nil, err
	}
	s := &protocol.Status{}
	if err := json.Unmarshal([]byte(out), s); err != nil {
		return nil, fmt.Errorf("vrdma status -o json printed no JSON: %w", err)
	}
	return s, nil
}

// SentBytes is how many bytes the host's device has sent.
func (h *Host) SentBytes(ctx context.Context) (uint64, error) {
	bytes, _, err := h.sentCounters(ctx)
	return bytes, err
}

// sentCounters is how many bytes of data the host's device has sent, and how many packets. Atomics have no data.
func (h *Host) sentCounters(ctx context.Context) (bytes, packets uint64, err error) {
	status, err := h.Status(ctx)
	if err != nil {
		return 0, 0, err
	}
	const unit = 4 // of InfiniBand's data counters
	return unit * status.Counters["port_xmit_data"], status.Counters["port_xmit_packets"], nil
}
