package testbed

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// A Container is a container of an engine, or network namespaces in its place.
type Container struct {
	Host  *Host
	Enter []string // words before a command that run it in the container's network
	PID   int
	Close func()
}

// newContainers starts two containers with a veth pair, or PerSide containers on each side with a bridge. A daemon on this host gives
// each a NIC of one tenant.
func newContainers(ctx context.Context, in *Environments, c experiment.Cell) (p *Environment, err error) {
	l := in.Lab
	l.HostsMade++
	base := &Host{Lab: l, Socket: filepath.Join(l.Dir, fmt.Sprintf("c%d", l.HostsMade)), IP: "127.0.0.1"}
	d, err := base.Start(ctx, "--network=false", "--store", base.Socket+".db")
	if err != nil {
		return nil, err
	}
	names := ContainerNames(c.ContainersPerSide())
	var containers []*Container
	var bridge *Namespace
	stop := func() {
		for _, b := range containers {
			b.Close()
		}
		if bridge != nil {
			bridge.Close()
		}
		d.Stop()
	}
	defer func() {
		if err != nil {
			stop()
		}
	}()
	file := base.Socket + ".yaml"
	if err := os.WriteFile(file, []byte(ContainerObjects(names)), 0o644); err != nil {
		return nil, err
	}
	if _, err := l.Run(ctx, l.Vrdma, "apply", "--socket", base.Socket, "-f", file); err != nil {
		return nil, err
	}
	if len(names) > 2 {
		if bridge, err = l.NewNamespace(ctx); err != nil {
			return nil, err
		}
	}
	label, start, err := in.ContainerStarter(ctx, bridge)
	if err != nil {
		return nil, err
	}
	for i, name := range names {
		b, err := start(base, i, name)
		if err != nil {
			return nil, err
		}
		containers = append(containers, b)
	}
	if bridge == nil {
		err = l.joinTwo(ctx, containers, c)
	} else {
		err = l.joinAll(ctx, bridge, containers, c)
	}
	if err != nil {
		return nil, err
	}
	p = &Environment{Daemons: []*Daemon{d}, Close: stop, Label: label}
	for i := 0; i < len(containers); i += 2 {
		p.others = append(p.others, Route{Server: containers[i+1].Host, Client: containers[i].Host})
	}
	p.Route, p.others = p.others[0], p.others[1:]
	return p, nil
}

// ContainerStarter returns a function that starts a container with a NIC of tenant bench, and a label for it. Without an engine it
// makes network namespaces beside first: a link can only join namespaces of one user namespace.
func (in *Environments) ContainerStarter(ctx context.Context, first *Namespace) (label string, start func(base *Host, i int, name string) (*Container, error), err error) {
	e, err := in.chooseEngine(ctx)
	if err != nil {
		return "", nil, err
	}
	if e != nil {
		in.sweep(ctx, e)
		return "containers of " + e.name, func(base *Host, i int, name string) (*Container, error) {
			return in.startContainer(ctx, e, base, i, name)
		}, nil
	}
	why := "there is no engine"
	if in.Engine == NoEngine {
		why = "that was asked for"
	}
	return "network namespaces instead of containers: " + why, func(base *Host, i int, name string) (*Container, error) {
		return in.Lab.namespaceContainer(ctx, base, &first, i, name)
	}, nil
}

// namespaceContainer makes network namespaces in place of a container.
func (l *Lab) namespaceContainer(ctx context.Context, base *Host, first **Namespace, i int, name string) (*Container, error) {
	var s *Namespace
	var err error
	if *first == nil {
		s, err = l.NewNamespace(ctx)
		*first = s
	} else {
		s, err = l.namespaceBeside(ctx, *first)
	}
	if err != nil {
		return nil, err
	}
	h := &Host{Lab: l, Socket: base.Socket + ".nics/bench/" + name + "/nic/vrdma.sock", IP: fmt.Sprintf("10.98.0.%d", i+1), Enter: s.Enter(), PID: s.holder.Process.Pid}
	return &Container{Host: h, Enter: s.Enter(), PID: s.holder.Process.Pid, Close: s.Close}, nil
}

// Root returns the root directory of containers.
func (in *Environments) Root() string {
	if in.Rootfs == "" {
		return "/:O" // podman: this machine's root, with a temporary overlay
	}
	return in.Rootfs
}

// joinTwo connects two containers with a veth pair.
func (l *Lab) joinTwo(ctx context.Context, containers []*Container, c experiment.Cell) error {
	size := fmt.Sprint(c.MTU)
	in := func(b *Container, argv ...string) []string {
		return append(b.Enter[:len(b.Enter):len(b.Enter)], argv...)
	}
	commands := [][]string{in(containers[0], "ip", "link", "add", "eth0", "mtu", size, "type", "veth", "peer", "name", "eth0", "mtu", size, "netns", fmt.Sprint(containers[1].PID))}
	return l.addLinks(ctx, commands, containers, c)
}

// joinAll connects containers with a bridge.
func (l *Lab) joinAll(ctx context.Context, bridge *Namespace, containers []*Container, c experiment.Cell) error {
	at := func(format string, args ...any) []string {
		return append(bridge.Enter(), "sh", "-c", fmt.Sprintf(format, args...))
	}
	commands := [][]string{at("ip link add br0 mtu %d type bridge && ip link set br0 up", c.MTU)}
	for i, b := range containers {
		commands = append(commands, at("ip link add box%[1]d mtu %[2]d type veth peer name eth0 mtu %[2]d netns %[3]d && ip link set box%[1]d master br0 up", i, c.MTU, b.PID))
	}
	return l.addLinks(ctx, commands, containers, c)
}

// addLinks runs the commands that make links, and gives each container its address.
func (l *Lab) addLinks(ctx context.Context, commands [][]string, containers []*Container, c experiment.Cell) error {
	in := func(b *Container, argv ...string) []string {
		return append(b.Enter[:len(b.Enter):len(b.Enter)], argv...)
	}
	for _, b := range containers {
		commands = append(commands,
			in(b, "ip", "address", "add", b.Host.IP+"/24", "dev", "eth0"),
			in(b, "ip", "link", "set", "eth0", "up"))
		for _, argv := range shaping(c) {
			commands = append(commands, in(b, argv...))
		}
	}
	for _, argv := range commands {
		if _, err := l.Run(ctx, argv...); err != nil {
			return fmt.Errorf("no link between containers: %w; %s", err, l.NamespaceRemedy())
		}
	}
	return nil
}
