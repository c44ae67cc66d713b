package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// A box is a container of an engine's, or namespaces that stand for one.
type box struct {
	host  *Host
	net   []string // what a command is run with to be in its network
	pid   int
	close func()
}

// inContainers makes two containers on this host, a link between them, and a daemon whose NICs of one
// tenant they have; if the cell has more a side, as many, and a bridge.
func inContainers(ctx context.Context, in *Environments, c experiment.Cell) (p *place, err error) {
	l := in.Lab
	l.wires++
	base := &Host{lab: l, Socket: filepath.Join(l.Dir, fmt.Sprintf("c%d", l.wires)), IP: "127.0.0.1"}
	d, err := base.Start(ctx, "--network=false", "--store", base.Socket+".db")
	if err != nil {
		return nil, err
	}
	names := boxNames(c.Boxes())
	var boxes []*box
	var bridge *space
	stop := func() {
		for _, b := range boxes {
			b.close()
		}
		if bridge != nil {
			bridge.close()
		}
		d.stop()
	}
	defer func() {
		if err != nil {
			stop()
		}
	}()
	file := base.Socket + ".yaml"
	if err := os.WriteFile(file, []byte(containerObjects(names)), 0o644); err != nil {
		return nil, err
	}
	if _, err := l.Run(ctx, l.Vrdma, "apply", "--socket", base.Socket, "-f", file); err != nil {
		return nil, err
	}
	if len(names) > 2 {
		if bridge, err = l.newSpace(ctx); err != nil {
			return nil, err
		}
	}
	label, start, err := in.starter(ctx, bridge)
	if err != nil {
		return nil, err
	}
	for i, name := range names {
		b, err := start(base, i, name)
		if err != nil {
			return nil, err
		}
		boxes = append(boxes, b)
	}
	if bridge == nil {
		err = l.join(ctx, boxes, c)
	} else {
		err = l.joinAll(ctx, bridge, boxes, c)
	}
	if err != nil {
		return nil, err
	}
	p = &place{daemons: []*daemon{d}, close: stop, label: label}
	for i := 0; i < len(boxes); i += 2 {
		p.others = append(p.others, Route{Server: boxes[i+1].host, Client: boxes[i].host})
	}
	p.route, p.others = p.others[0], p.others[1:]
	return p, nil
}

// starter is what starts a container with a NIC of tenant bench at a host's daemon, and says what it starts. Namespaces instead of
// containers are made beside first, if there is one: links join only namespaces of one owner.
func (in *Environments) starter(ctx context.Context, first *space) (label string, start func(base *Host, i int, name string) (*box, error), err error) {
	e, err := in.chosen(ctx)
	if err != nil {
		return "", nil, err
	}
	if e != nil {
		in.sweep(ctx, e)
		return "containers of " + e.name, func(base *Host, i int, name string) (*box, error) { return in.container(ctx, e, base, i, name) }, nil
	}
	why := "there is no engine"
	if in.Engine == NoEngine {
		why = "that was asked for"
	}
	return "network namespaces instead of containers: " + why, func(base *Host, i int, name string) (*box, error) {
		return in.Lab.namespaceBox(ctx, base, &first, i, name)
	}, nil
}

// namespaceBox is a box without an engine.
func (l *Lab) namespaceBox(ctx context.Context, base *Host, first **space, i int, name string) (*box, error) {
	var s *space
	var err error
	if *first == nil {
		s, err = l.newSpace(ctx)
		*first = s
	} else {
		s, err = l.beside(ctx, *first)
	}
	if err != nil {
		return nil, err
	}
	h := &Host{lab: l, Socket: base.Socket + ".nics/bench/" + name + "/nic/vrdma.sock", IP: fmt.Sprintf("10.98.0.%d", i+1), enter: s.enter(), pid: s.holder.Process.Pid}
	return &box{host: h, net: s.enter(), pid: s.holder.Process.Pid, close: s.close}, nil
}

// root is the root directory of containers.
func (in *Environments) root() string {
	if in.Rootfs == "" {
		return "/:O" // this machine's own programs, and nothing written to it
	}
	return in.Rootfs
}

// join makes a link between two boxes.
func (l *Lab) join(ctx context.Context, boxes []*box, c experiment.Cell) error {
	size := fmt.Sprint(c.MTU)
	in := func(b *box, argv ...string) []string { return append(b.net[:len(b.net):len(b.net)], argv...) }
	commands := [][]string{in(boxes[0], "ip", "link", "add", "eth0", "mtu", size, "type", "veth", "peer", "name", "eth0", "mtu", size, "netns", fmt.Sprint(boxes[1].pid))}
	return l.wireUp(ctx, commands, boxes, c)
}

// joinAll joins boxes by a bridge.
func (l *Lab) joinAll(ctx context.Context, bridge *space, boxes []*box, c experiment.Cell) error {
	at := func(format string, args ...any) []string {
		return append(bridge.enter(), "sh", "-c", fmt.Sprintf(format, args...))
	}
	commands := [][]string{at("ip link add br0 mtu %d type bridge && ip link set br0 up", c.MTU)}
	for i, b := range boxes {
		commands = append(commands, at("ip link add box%[1]d mtu %[2]d type veth peer name eth0 mtu %[2]d netns %[3]d && ip link set box%[1]d master br0 up", i, c.MTU, b.pid))
	}
	return l.wireUp(ctx, commands, boxes, c)
}

// wireUp runs commands that make links, and gives each box its address.
func (l *Lab) wireUp(ctx context.Context, commands [][]string, boxes []*box, c experiment.Cell) error {
	in := func(b *box, argv ...string) []string { return append(b.net[:len(b.net):len(b.net)], argv...) }
	for _, b := range boxes {
		commands = append(commands,
			in(b, "ip", "address", "add", b.host.IP+"/24", "dev", "eth0"),
			in(b, "ip", "link", "set", "eth0", "up"))
		for _, argv := range shaping(c) {
			commands = append(commands, in(b, argv...))
		}
	}
	for _, argv := range commands {
		if _, err := l.Run(ctx, argv...); err != nil {
			return fmt.Errorf("no link between containers: %w; %s", err, l.remedy())
		}
	}
	return nil
}
