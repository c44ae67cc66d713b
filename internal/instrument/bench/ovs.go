package bench

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

// An ovs is a running switch of OVS-DPDK. Its thread polls a processor as long as it runs, so it stands still
// while others are measured.
type ovs struct {
	s   *started
	run string
}

// startOVS starts the switch between sockets on which QEMU listens. Huge pages are rare, so it has none.
func (l *Lab) startOVS(ctx context.Context, run string, sockets [2]string) (*ovs, error) {
	dir, err := cache.Fill("ovs-dpdk", func(dir string) error {
		if _, err := l.Run(ctx, "sh", "-c", ovsScript, "sh", "fetch", dir); err != nil {
			return fmt.Errorf("cannot fetch OVS-DPDK: %w; it is Debian's package openvswitch-switch-dpdk", err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	s, err := l.start(ctx, []string{"sh", "-c", ovsScript, "sh", "serve", dir, run, sockets[0], sockets[1]})
	if err != nil {
		return nil, err
	}
	o := &ovs{s: s, run: run}
	// A port is there when both of QEMU's ends are connected.
	var broken string
	both := func() bool {
		text, _ := os.ReadFile(filepath.Join(run, "log")) // none yet
		broken = ovsFailure(string(text))
		return broken != "" || strings.Count(string(text), "has been added on numa node") >= 2
	}
	timeout, cancel := context.WithTimeoutCause(ctx, booting, tooLong(booting))
	defer cancel()
	if err := await(timeout, both, s.ended); err != nil {
		said, _ := s.end(0, false)
		text, _ := os.ReadFile(filepath.Join(run, "log")) // what it said may be enough
		return nil, failure(timeout, []string{"ovs-vswitchd-dpdk"}, err, said+lastLines(string(text), 5))
	}
	if broken != "" {
		s.end(0, false)
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

// goOn lets it run, and hold has it stand still. It may have ended: then its guests say so.
func (o *ovs) goOn() { syscall.Kill(-o.s.cmd.Process.Pid, syscall.SIGCONT) }
func (o *ovs) hold() { syscall.Kill(-o.s.cmd.Process.Pid, syscall.SIGSTOP) }

func (o *ovs) end() {
	o.goOn()
	o.s.end(0, false)
}
