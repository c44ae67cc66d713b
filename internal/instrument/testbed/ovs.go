package testbed

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"vrdma.dev/vrdma/internal/instrument/cache"
)

// ovsScript downloads and starts Open vSwitch with DPDK. Its vhost-user ports are compared with the daemon's.
//
//go:embed programs/ovs.sh
var ovsScript string

// An OVS is a running Open vSwitch with DPDK. Its thread polls a processor all the time, so it is paused while other transports are
// measured.
type OVS struct {
	s   *Process
	run string
}

// startOVS starts the switch between the sockets on which QEMU listens. It runs without huge pages, which few machines have
// configured.
func (l *Lab) startOVS(ctx context.Context, run string, sockets [2]string) (*OVS, error) {
	dir, err := cache.Fill("ovs-dpdk", func(dir string) error {
		if _, err := l.Run(ctx, "sh", "-c", ovsScript, "sh", "fetch", dir); err != nil {
			return fmt.Errorf("cannot fetch OVS-DPDK: %w; it is Debian's package openvswitch-switch-dpdk", err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	s, err := l.Start(ctx, []string{"sh", "-c", ovsScript, "sh", "serve", dir, run, sockets[0], sockets[1]})
	if err != nil {
		return nil, err
	}
	o := &OVS{s: s, run: run}
	// The log mentions a port when QEMU's end is connected.
	var broken string
	both := func() bool {
		text, _ := os.ReadFile(filepath.Join(run, "log")) // there may be no log yet
		broken = ovsFailure(string(text))
		return broken != "" || strings.Count(string(text), "has been added on numa node") >= 2
	}
	timeout, cancel := context.WithTimeoutCause(ctx, bootTimeout, Timeout(bootTimeout))
	defer cancel()
	if err := Await(timeout, both, s.Ended); err != nil {
		said, _ := s.Stop(0, false)
		text, _ := os.ReadFile(filepath.Join(run, "log")) // its output may be enough
		return nil, Failure(timeout, []string{"ovs-vswitchd-dpdk"}, err, said+LastLines(string(text), 5))
	}
	if broken != "" {
		s.Stop(0, false)
		return nil, fmt.Errorf("ovs-vswitchd-dpdk has no port: %s", broken)
	}
	return o, nil
}

// ovsFailure finds the reason for a missing port in the switch's log; "": none. The switch itself keeps running without the port.
func ovsFailure(log string) string {
	for line := range strings.Lines(log) {
		if _, text, found := strings.Cut(line, "|ERR|"); found && strings.HasPrefix(text, "Failed to create memory pool") {
			return strings.TrimSpace(text)
		}
	}
	return ""
}

// Resume lets the switch run. If it has ended, its guests report that.
func (o *OVS) Resume() { syscall.Kill(-o.s.Cmd.Process.Pid, syscall.SIGCONT) }

// Pause stops the switch.
func (o *OVS) Pause() { syscall.Kill(-o.s.Cmd.Process.Pid, syscall.SIGSTOP) }

func (o *OVS) stop() {
	o.Resume()
	o.s.Stop(0, false)
}
