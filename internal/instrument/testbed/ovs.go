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

// ovsScript fetches and starts Open vSwitch with DPDK, whose vhost-user ports the daemon's are measured beside.
//
//go:embed programs/ovs.sh
var ovsScript string

// An OVS is a running switch of OVS-DPDK. Its thread polls a processor as long as it runs, so it stands still
// while others are measured.
type OVS struct {
	s   *Process
	run string
}

// startOVS starts the switch between sockets on which QEMU listens. Huge pages are rare, so it has none.
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
	// A port is there when both of QEMU's ends are connected.
	var broken string
	both := func() bool {
		text, _ := os.ReadFile(filepath.Join(run, "log")) // none yet
		broken = ovsFailure(string(text))
		return broken != "" || strings.Count(string(text), "has been added on numa node") >= 2
	}
	timeout, cancel := context.WithTimeoutCause(ctx, bootTimeout, Timeout(bootTimeout))
	defer cancel()
	if err := Await(timeout, both, s.Ended); err != nil {
		said, _ := s.Stop(0, false)
		text, _ := os.ReadFile(filepath.Join(run, "log")) // what it said may be enough
		return nil, Failure(timeout, []string{"ovs-vswitchd-dpdk"}, err, said+LastLines(string(text), 5))
	}
	if broken != "" {
		s.Stop(0, false)
		return nil, fmt.Errorf("ovs-vswitchd-dpdk has no port: %s", broken)
	}
	return o, nil
}

// ovsFailure is why a port is not there, by the switch's log; "": nothing is known to be wrong. The switch itself goes on without it.
func ovsFailure(log string) string {
	for line := range strings.Lines(log) {
		if _, text, found := strings.Cut(line, "|ERR|"); found && strings.HasPrefix(text, "Failed to create memory pool") {
			return strings.TrimSpace(text)
		}
	}
	return ""
}

// Resume lets it run, and hold has it stand still. It may have ended: then its guests say so.
func (o *OVS) Resume() { syscall.Kill(-o.s.Cmd.Process.Pid, syscall.SIGCONT) }
func (o *OVS) Pause()  { syscall.Kill(-o.s.Cmd.Process.Pid, syscall.SIGSTOP) }

func (o *OVS) stop() {
	o.Resume()
	o.s.Stop(0, false)
}
