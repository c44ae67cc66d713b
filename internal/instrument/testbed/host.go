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

// A Host is where one side of a measurement runs: this machine, a network namespace that stands for another one, a container, a guest
// or another machine.
type Host struct {
	Socket string // of its daemon
	IP     string // the address of its servers

	Lab        *Lab
	NIC        string   // the declared NIC of its programs; empty: the default NIC
	Enter      []string // words before a command that run it on the host; nil: here
	PID        int      // a process in the host's network namespace; 0: this process
	Interface  string   // the interface to other hosts; empty: eth0 in a namespace, lo here
	Container  string   // the name of the container; its NIC is mounted there
	Agent      *Agent   // starts programs on another machine or in a guest; nil: they are started here
	DaemonSide *Host    // a guest's NIC as the daemon on this machine has it; nil: not a guest
}

// Vrdma returns the path of the vrdma program on the host.
func (h *Host) Vrdma() string {
	if h.Agent != nil {
		return h.Agent.vrdma
	}
	return h.Lab.Vrdma
}

// Link returns the interface to other hosts.
func (h *Host) Link() string {
	switch {
	case h.Interface != "":
		return h.Interface
	case h.PID != 0:
		return "eth0"
	}
	return "lo"
}

// At returns the command that runs argv on the host.
func (h *Host) At(argv ...string) []string {
	return append(h.Enter[:len(h.Enter):len(h.Enter)], argv...)
}

// inNetwork returns the command that runs argv in the network of a container, but with the files of this machine.
func (h *Host) inNetwork(argv ...string) []string {
	if h.Container == "" {
		return h.At(argv...)
	}
	return append([]string{"nsenter", "--target", fmt.Sprint(h.PID), "--net", "--"}, argv...)
}

// inNetworkWithDevice is inNetwork for a program that starts its children inside of the container, where the device is. Without a
// container it gives argv the device.
func (h *Host) inNetworkWithDevice(argv ...string) []string {
	if h.Container == "" {
		return h.Under(argv...)
	}
	return h.inNetwork(argv...)
}

// Under returns the command that runs argv on the host with its device.
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

// WithNIC returns the host with another declared NIC.
func (h *Host) WithNIC(nic string) *Host {
	m := *h
	m.NIC = nic
	return &m
}

// Sockets returns the command that runs argv on the host with its TCP connections over RDMA.
func (h *Host) Sockets(argv ...string) []string {
	return h.At(append([]string{h.Lab.Vrdma, "run", "--quiet", "--sockets", "--socket", h.Socket, "--"}, argv...)...)
}

// ListensTCP returns a function that reports whether a program listens on the TCP port. It reads the kernel's table, because tools
// accept one connection only: the client's.
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

// hasListener finds a listener in /proc/net/tcp.
func hasListener(table string, port int) bool { return hasSocket(table, port, "0A") }

// hasSocket finds a socket of this port and state in a table of /proc/net.
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

// ReceivesUDP returns a function that reports whether a program has a UDP socket of this port.
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

// afterDelay returns a function that reports true after half a second. It is for servers of the kernel's rdma_cm, whose listeners no
// table shows.
func (h *Host) afterDelay(int) func() bool {
	begin := time.Now()
	return func() bool { return time.Since(begin) > 500*time.Millisecond }
}

// ListensCM returns a function that reports whether a program listens on an rdma_cm port of the host's daemon.
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

// Listens returns a function that reports whether a program listens on the port, with TCP or rdma_cm.
func (h *Host) Listens(port int) func() bool {
	over, past := h.ListensCM(port), h.ListensTCP(port)
	return func() bool { return over() || past() }
}

// Status asks the host's daemon for its status. The command runs on the host: a daemon shows programs to their own user only, and user
// ids differ in a user namespace.
func (h *Host) Status(ctx context.Context) (*protocol.Status, error) {
	argv := []string{h.Lab.Vrdma, "status", "--socket", h.Socket, "-o", "json"}
	if h.Container == "" { // a container has no vrdma
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

// SentBytes returns how many bytes the host's device has sent.
func (h *Host) SentBytes(ctx context.Context) (uint64, error) {
	bytes, _, err := h.sentCounters(ctx)
	return bytes, err
}

// sentCounters returns how many bytes of data and how many packets the host's device has sent. Atomics have no data.
func (h *Host) sentCounters(ctx context.Context) (bytes, packets uint64, err error) {
	status, err := h.Status(ctx)
	if err != nil {
		return 0, 0, err
	}
	const unit = 4 // bytes in a unit of InfiniBand's data counters
	return unit * status.Counters["port_xmit_data"], status.Counters["port_xmit_packets"], nil
}
