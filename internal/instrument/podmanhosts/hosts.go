package podmanhosts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Hosts are two hosts that share a store.
type Hosts struct {
	A, B *Host

	tools   tools
	dir     string
	groups  string // the parent of the containers' control groups
	etcd    *exec.Cmd
	started sync.WaitGroup // daemons and programs
	runtime string
}

// storeAddress is where etcd serves, on the first host.
const storeAddress = "10.99.0.1:2379"

// startTime is how long the start of the hosts may take.
const startTime = 2 * time.Minute

// New makes the hosts. If this machine lacks something for them, the error says what to install.
func New(ctx context.Context) (x *Hosts, err error) {
	x = &Hosts{}
	if x.tools, err = find(); err != nil {
		return nil, err
	}
	life := ctx // of the daemons
	ctx, cancel := context.WithTimeoutCause(ctx, startTime, fmt.Errorf("the two hosts did not start within %v", startTime))
	defer cancel()
	defer func() {
		if err != nil {
			err = errors.Join(err, context.Cause(ctx), x.Close())
			x = nil
		}
	}()
	if x.dir, err = os.MkdirTemp("/tmp", "vrdma-hosts"); err != nil {
		return x, err
	}
	if x.groups, err = makeGroups(); err != nil {
		return x, err
	}
	if x.A, err = x.startHost("node-a", "10.99.0.1"); err != nil {
		return x, err
	}
	if x.B, err = x.startHost("node-b", "10.99.0.2"); err != nil {
		return x, err
	}
	if err := x.connect(ctx); err != nil {
		return x, err
	}
	if err := x.startEtcd(); err != nil {
		return x, err
	}
	for _, h := range []*Host{x.A, x.B} {
		if err := h.serve(ctx, life); err != nil {
			return x, err
		}
	}
	return x, nil
}

// connect makes the wire.
func (x *Hosts) connect(ctx context.Context) error {
	steps := [][]string{x.A.inNetwork("ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", strconv.Itoa(x.B.pid))}
	for _, h := range []*Host{x.A, x.B} {
		steps = append(steps, h.inNetwork("ip", "address", "add", h.IP+"/24", "dev", "eth0"), h.inNetwork("ip", "link", "set", "eth0", "up"))
	}
	for _, argv := range steps {
		if out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, out)
		}
	}
	return nil
}

// inNetwork is a command line that runs in the network of the host, with the files of this machine.
func (h *Host) inNetwork(argv ...string) []string {
	return append([]string{"nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", h.pid), "--"}, argv...)
}

func (x *Hosts) startEtcd() error {
	log, err := os.Create(filepath.Join(x.dir, "etcd.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	argv := x.A.inNetwork(x.tools.etcd, "--data-dir", filepath.Join(x.dir, "etcd"), "--listen-client-urls", "http://"+storeAddress,
		"--advertise-client-urls", "http://"+storeAddress, "--listen-peer-urls", "http://127.0.0.1:2380")
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	x.etcd = cmd
	return nil
}

// Close ends everything and removes what the hosts had.
func (x *Hosts) Close() error {
	thaw(x.groups)
	for _, h := range []*Host{x.B, x.A} {
		if h != nil {
			h.end()
		}
	}
	if x.etcd != nil {
		x.etcd.Process.Kill() // fails if it has ended
		x.etcd.Wait()         // it was killed
	}
	x.started.Wait()
	err := removeGroups(x.groups)
	if x.dir != "" {
		err = errors.Join(err, os.RemoveAll(x.dir))
	}
	return err
}

// Use makes podman use another OCI runtime than crun.
func (x *Hosts) Use(runtime string) { x.runtime = runtime }

// podman is a command line of podman.
func (x *Hosts) podman(argv ...string) []string {
	if x.runtime == "" {
		return append([]string{"podman"}, argv...)
	}
	return append([]string{"podman", "--runtime", x.runtime}, argv...)
}

// Apply declares objects.
func (x *Hosts) Apply(ctx context.Context, text string) error {
	_, err := x.A.feed(ctx, strings.NewReader(text), "vrdma", "apply", "-f", "-")
	return err
}

// Await waits until a host says what is wanted in the answer to a command of vrdma.
func (h *Host) Await(ctx context.Context, want string, args ...string) error {
	for {
		out, err := h.Run(ctx, append([]string{"vrdma"}, args...)...)
		if err == nil && strings.Contains(out, want) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s does not say %q: %w: %s", h.Name, want, context.Cause(ctx), out)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
