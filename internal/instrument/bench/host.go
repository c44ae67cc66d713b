package bench

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

	lab   *Lab
	nic   string   // the declared NIC that programs use; empty: the default one
	enter []string // what a command is run with to be there; nil: here
	pid   int      // a process whose network is the host's; 0: ourselves
	eth   string   // the interface to others; empty: eth0 in a namespace, lo here
	box   string   // the name of the container that it is; its NIC is mounted there
	far   *agent   // another machine's; nil: this one
	seen  *Host    // a guest's NIC as this machine's daemon has it; nil: it is no guest
}

// vrdma is where the product is on the host.
func (h *Host) vrdma() string {
	if h.far != nil {
		return h.far.vrdma
	}
	return h.lab.Vrdma
}

// link is the interface to others.
func (h *Host) link() string {
	switch {
	case h.eth != "":
		return h.eth
	case h.pid != 0:
		return "eth0"
	}
	return "lo"
}

// At is argv on the host.
func (h *Host) At(argv ...string) []string {
	return append(h.enter[:len(h.enter):len(h.enter)], argv...)
}

// outside is argv in the network of a container, and not in the container.
func (h *Host) outside(argv ...string) []string {
	if h.box == "" {
		return h.At(argv...)
	}
	return append([]string{"nsenter", "--target", fmt.Sprint(h.pid), "--net", "--"}, argv...)
}

// outsideDevice is outside for whom goes inside by itself, where the device is; with the device if there is no container.
func (h *Host) outsideDevice(argv ...string) []string {
	if h.box == "" {
		return h.Under(argv...)
	}
	return h.outside(argv...)
}

// Under is argv on the host, with its device.
func (h *Host) Under(argv ...string) []string {
	if h.box != "" {
		return h.At(argv...)
	}
	run := []string{h.lab.Vrdma, "run", "--quiet", "--socket", h.Socket}
	if h.nic != "" {
		run = append(run, "--nic", h.nic)
	}
	return h.At(append(append(run, "--"), argv...)...)
}

// member is the host with a declared NIC.
func (h *Host) member(nic string) *Host {
	m := *h
	m.nic = nic
	return &m
}

// Sockets is argv on the host, its TCP connections carried over RDMA.
func (h *Host) Sockets(argv ...string) []string {
	return h.At(append([]string{h.lab.Vrdma, "run", "--quiet", "--sockets", "--socket", h.Socket, "--"}, argv...)...)
}

// listens reports whether somebody on the host listens on the TCP port. It looks at
// the kernel's table: the tools accept only one connection, and that is the client's.
func (h *Host) listens(port int) func() bool {
	who := "self"
	if h.pid != 0 {
		who = fmt.Sprint(h.pid)
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

// receives reports whether somebody on the host has a UDP socket of this port.
func (h *Host) receives(port int) func() bool {
	who := "self"
	if h.pid != 0 {
		who = fmt.Sprint(h.pid)
	}
	return func() bool {
		text, err := os.ReadFile(filepath.Join("/proc", who, "net", "udp"))
		return err == nil && hasSocket(string(text), port, "07")
	}
}

// soon is for a server of the kernel's rdma_cm, whose listeners are in no table: half a second after it began.
func (h *Host) soon(int) func() bool {
	begin := time.Now()
	return func() bool { return time.Since(begin) > 500*time.Millisecond }
}

// manages reports whether somebody listens on a port of rdma_cm's, at the host's daemon.
func (h *Host) manages(port int) func() bool {
	suffix := fmt.Sprintf(":%d", port)
	return func() bool {
		status, err := h.status(context.Background())
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

// accepts reports whether somebody listens on a port, whichever way.
func (h *Host) accepts(port int) func() bool {
	over, past := h.manages(port), h.listens(port)
	return func() bool { return over() || past() }
}

// status asks the host's daemon. A program on the host does, because a daemon shows
// its programs only to their own user, who has another number there.
func (h *Host) status(ctx context.Context) (*protocol.Status, error) {
	argv := []string{h.lab.Vrdma, "status", "--socket", h.Socket, "-o", "json"}
	if h.box == "" { // vrdma is not in a container
		argv = h.At(argv...)
	}
	out, err := h.lab.Run(ctx, argv...)
	if err != nil {
		return nil, err
	}
	s := &protocol.Status{}
	if err := json.Unmarshal([]byte(out), s); err != nil {
		return nil, fmt.Errorf("vrdma status -o json printed no JSON: %w", err)
	}
	return s, nil
}

// sent is how many bytes the host's device has sent.
func (h *Host) sent(ctx context.Context) (uint64, error) {
	bytes, _, err := h.counted(ctx)
	return bytes, err
}

// counted is how many bytes of data the host's device has sent, and how many packets. Atomics have no data.
func (h *Host) counted(ctx context.Context) (bytes, packets uint64, err error) {
	status, err := h.status(ctx)
	if err != nil {
		return 0, 0, err
	}
	const unit = 4 // of InfiniBand's data counters
	return unit * status.Counters["port_xmit_data"], status.Counters["port_xmit_packets"], nil
}
