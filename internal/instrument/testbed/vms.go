package testbed

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"vrdma.dev/vrdma/internal/instrument/experiment"
	"vrdma.dev/vrdma/internal/instrument/rxeguest"
)

// Two guests on this host. Each has a vhost-user card of the daemon's switch, which also carries verbs, and a tap card in a
// bridge:
//
//	guest a: agent, tools                              guest b: agent, tools
//	  eth0  ══ vhost-user, shared memory ══ daemon ══ vhost-user ══  eth0     vhost, verbs, sockets
//	  eth1  ── tap ─────────────── bridge ─────────────────── tap ── eth1     tcp
const (
	guestMemoryMiB = 704               // MiB for each guest, with more than two
	pairMemoryMiB  = 1152              // MiB for each of two guests: several MPI ranks register buffers in it
	guestSocket    = "/run/vrdma.sock" // of the agent that gives programs in a guest the device
	guestShell     = 7777              // the port where a guest runs commands for mpirun
	guestAddress   = "10.98.0.%d"      // address of the NIC
	guestPlain     = "10.99.0.%d"      // address of the tap card
)

// guestScript adds NetPIPE, sockperf, Open MPI and their libraries to the image of a guest.
//
//go:embed programs/guest.sh
var guestScript string

// NewVMs boots two guests, or PerSide guests on each side.
func NewVMs(ctx context.Context, in *Environments, c experiment.Cell) (p *Environment, err error) {
	l := in.Lab
	names := ContainerNames(c.ContainersPerSide())
	if err := enoughMemory(len(names)); err != nil {
		return nil, err
	}
	other := c.Transport == experiment.OVS // then the second cards are connected to OVS
	image, err := in.guestImage(ctx, "vms")
	if err != nil {
		return nil, err
	}
	initramfs, err := l.guestTools(ctx, image)
	if err != nil {
		return nil, err
	}
	l.HostsMade++
	base := &Host{Lab: l, Socket: filepath.Join(l.Dir, fmt.Sprintf("v%d", l.HostsMade)), IP: "127.0.0.1"}
	d, err := base.Start(ctx, "--addr", base.IP, "--guest", "bench/"+strings.Join(names, ",bench/"), "--store", base.Socket+".db")
	if err != nil {
		return nil, err
	}
	p = &Environment{Daemons: []*Daemon{d}, Label: fmt.Sprintf("%s guests with one emulated processor each", count(len(names)))}
	var bridge *Namespace
	p.Close = func() {
		if p.OVS != nil {
			p.OVS.stop()
		}
		for _, m := range p.VMs {
			m.Agent.close()
		}
		d.Stop()
		if bridge != nil {
			bridge.Close()
		}
	}
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	file := base.Socket + ".yaml"
	if err := os.WriteFile(file, []byte(ContainerObjects(names)), 0o644); err != nil {
		return nil, err
	}
	if _, err := l.Run(ctx, l.Vrdma, "apply", "--socket", base.Socket, "-f", file); err != nil {
		return nil, err
	}
	if bridge, err = l.NewNamespace(ctx); err != nil {
		return nil, err
	}
	if _, err := l.Run(ctx, append(bridge.Enter(), "sh", "-c", "ip link add br0 type bridge && ip link set br0 up")...); err != nil {
		return nil, fmt.Errorf("no bridge: %w", err)
	}
	for i, name := range names {
		m, err := in.startVM(ctx, base, bridge, image, initramfs, memoryOf(len(names)), i+1, name, other)
		if err != nil {
			return nil, err
		}
		p.VMs = append(p.VMs, m)
	}
	if other {
		if p.OVS, err = l.startOVS(ctx, base.Socket+".ovs", [2]string{base.Socket + ".ovs-a", base.Socket + ".ovs-b"}); err != nil {
			return nil, err
		}
	}
	for _, m := range p.VMs {
		if err := m.ready(ctx); err != nil {
			return nil, err
		}
	}
	var plain []Route
	for i := 0; i < len(p.VMs); i += 2 {
		a, b := p.VMs[i], p.VMs[i+1]
		p.others = append(p.others, Route{Server: b.VhostSide, Client: a.VhostSide})
		plain = append(plain, Route{Server: b.TapSide, Client: a.TapSide})
	}
	p.Route, p.others = p.others[0], p.others[1:]
	p.TapRoute, p.otherTaps = &plain[0], plain[1:]
	p.host, p.bridge = base, bridge
	return p, nil
}

// count is the number in words if it is small.
func count(n int) string {
	if n == 2 {
		return "two"
	}
	return fmt.Sprint(n)
}

// memoryOf returns the memory of each guest in MiB.
func memoryOf(guests int) int {
	if guests > 2 {
		return guestMemoryMiB
	}
	return pairMemoryMiB
}

// errNoMemory means that the guests do not fit into this machine's memory.
var errNoMemory = errors.New("end other programs, or ask for fewer guests")

// enoughMemory returns an error if the guests do not fit into free memory.
func enoughMemory(guests int) error {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return err
	}
	return fits(string(text), guests)
}

// fits does the same for the contents of /proc/meminfo. The memory of one more guest must stay free.
func fits(meminfo string, guests int) error {
	free, err := parseMemory(meminfo, "MemAvailable")
	if err != nil {
		return err
	}
	if need := float64((guests + 1) * memoryOf(guests) << 20); free < need {
		return fmt.Errorf("%d guests need %s of memory, and %s are free: %w", guests, experiment.Amount(need, "B"), experiment.Amount(free, "B"), errNoMemory)
	}
	return nil
}

// A VM is a guest of settings vms and vms-apart.
type VM struct {
	name               string
	Agent              *Agent
	pid                int // of QEMU
	VhostSide, TapSide *Host
	stderr             *Transcript
	console            string
}

// guestTools returns the initramfs of the guests: the image, the product, the tools and Open MPI.
func (l *Lab) guestTools(ctx context.Context, image string) (string, error) {
	program, err := l.TransferProgram(ctx)
	if err != nil {
		return "", err
	}
	small, err := l.GuestInitramfs(ctx, image, fmt.Sprintf(`sh /usr/bin/begin "$1" %d >/dev/console 2>&1`, guestShell))
	if err != nil {
		return "", err
	}
	large := small + "-tools"
	if _, err := l.Run(ctx, "sh", "-c", guestScript, "sh", small, large, program); err != nil {
		return "", fmt.Errorf("the guests' image: %w; vrdma doctor says what is missing", err)
	}
	return large, nil
}

// startVM starts a guest. It is ready when its agent has answered.
func (in *Environments) startVM(ctx context.Context, base *Host, bridge *Namespace, image, initramfs string, memory, number int, name string, other bool) (*VM, error) {
	l := in.Lab
	args, err := l.Run(ctx, l.Vrdma, "guest", "args", "bench/"+name, "--tcg", "-m", fmt.Sprintf("%dM", memory), "--socket", base.Socket)
	if err != nil {
		return nil, err
	}
	tap := "tap" + name
	if _, err := l.Run(ctx, append(bridge.Enter(), "sh", "-c", fmt.Sprintf("ip tuntap add %[1]s mode tap && ip link set %[1]s master br0 up", tap))...); err != nil {
		return nil, fmt.Errorf("no tap: %w", err)
	}
	spec := rxeguest.Guest{
		Image: image, Initramfs: initramfs, CPUs: 1, Card: strings.Fields(args), IP4: "dhcp", MTU: 1500,
		Device: GuestDevice, Program: GuestProgram, Line: "stdio,signal=off", Console: base.Socket + "-console-" + name,
		More: []string{"-netdev", "tap,id=n1,ifname=" + tap + ",script=no,downscript=no",
			"-device", fmt.Sprintf("virtio-net-pci,netdev=n1,mac=52:54:00:99:00:%02d,romfile=", number)},
	}
	if other {
		spec.More = []string{"-chardev", fmt.Sprintf("socket,id=ovs,path=%s.ovs-%s,server=on,wait=off", base.Socket, name), "-netdev", "vhost-user,id=n1,chardev=ovs",
			"-device", fmt.Sprintf("virtio-net-pci,netdev=n1,vectors=0,mac=52:54:00:99:00:%02d,romfile=", number)}
	}
	if in.ThirdCard {
		more, err := l.addPlainTap(ctx, bridge, name)
		if err != nil {
			return nil, err
		}
		spec.More = append(spec.More, more...)
	}
	c := l.Command(ctx, append(bridge.Enter(), spec.Command()...)...)
	m := &VM{name: name, stderr: &Transcript{}, console: spec.Console}
	c.Stderr = m.stderr
	to, err1 := c.StdinPipe()
	from, err2 := c.StdoutPipe()
	if err := errors.Join(err1, err2, c.Start()); err != nil {
		return nil, err
	}
	m.pid = c.Process.Pid // nsenter executes QEMU
	m.Agent = &Agent{vrdma: "/usr/bin/vrdma", socket: guestSocket, to: to, from: bufio.NewReader(from)}
	m.Agent.close = sync.OnceFunc(func() {
		c.Cancel()
		c.Wait() // it was killed
	})
	seen := &Host{Lab: l, Socket: base.Socket + ".nics/bench/" + name + "/nic/vrdma.sock", Container: name}
	m.VhostSide = &Host{Lab: l, Socket: guestSocket, IP: fmt.Sprintf(guestAddress, number), Agent: m.Agent, DaemonSide: seen, Interface: "eth0"}
	m.TapSide = &Host{Lab: l, Socket: guestSocket, IP: fmt.Sprintf(guestPlain, number), Agent: m.Agent, DaemonSide: seen, Interface: "eth1"}
	return m, nil
}

// ready waits until the guest answers and its programs have the device.
func (m *VM) ready(ctx context.Context) error {
	timeout, cancel := context.WithTimeoutCause(ctx, bootTimeout, Timeout(bootTimeout))
	defer cancel()
	stop := context.AfterFunc(timeout, m.Agent.close)
	defer stop()
	_, err := m.Agent.read(timeout)
	if err == nil {
		_, err = m.Agent.ask(timeout, request{Guest: m.name})
	}
	if err == nil {
		return nil
	}
	m.Agent.close()
	console, _ := os.ReadFile(m.console) // an empty console is fine: QEMU says why
	return fmt.Errorf("guest %s: %w\n%s%s", m.name, err, m.stderr.String(), LastLines(string(console), 8))
}

// cpuTime returns the processor time that QEMU has used.
func (m *VM) cpuTime() (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", m.pid))
	if err != nil {
		return 0, err
	}
	return parseCPU(string(text))
}

// GuestsHost returns the host of the guests as a Host with a NIC of its own. Its guests reach it through the bridge.
func (l *Lab) GuestsHost(ctx context.Context, p *Environment) (*Host, error) {
	h := &Host{Lab: l, Socket: p.host.Socket, NIC: "bench/host", IP: fmt.Sprintf(guestPlain, 9), Enter: p.bridge.Enter(), PID: p.bridge.holder.Process.Pid}
	if _, err := l.Run(ctx, h.At("ip", "address", "add", h.IP+"/24", "dev", "br0")...); err != nil {
		return nil, err
	}
	file := h.Socket + "-host.yaml"
	const object = "{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: host, tenant: bench}, spec: {network: net, address: 10.98.0.9}}\n"
	if err := os.WriteFile(file, []byte(object), 0o644); err != nil {
		return nil, err
	}
	_, err := l.Run(ctx, l.Vrdma, "apply", "--socket", h.Socket, "-f", file)
	return h, err
}

// Run runs a shell command in the guest.
func (m *VM) Run(ctx context.Context, command string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, GuestTimeout, Timeout(GuestTimeout))
	defer cancel()
	got, err := m.Agent.ask(ctx, request{Run: [][]string{{"sh", "-c", "ip() { /usr/sbin/ip \"$@\"; }; " + command}}, Way: Plain.Name, Limit: ToolTimeout})
	if err == nil && len(got.Finished) == 1 && got.Finished[0].Error != "" {
		err = errors.New(got.Finished[0].Error)
	}
	return err
}

// addPlainTap makes one more tap and returns QEMU's arguments for a card without MSI-X on it.
func (l *Lab) addPlainTap(ctx context.Context, bridge *Namespace, name string) ([]string, error) {
	tap := "twin" + name
	_, err := l.Run(ctx, append(bridge.Enter(), "sh", "-c", fmt.Sprintf("ip tuntap add %[1]s mode tap && ip link set %[1]s master br0 up", tap))...)
	return []string{"-netdev", "tap,id=n2,ifname=" + tap + ",script=no,downscript=no", "-device", "virtio-net-pci,netdev=n2,mac=52:54:00:9a:00:0" + map[string]string{"a": "1", "b": "2"}[name] + ",romfile=,vectors=0"}, err
}
