package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"vrdma.dev/vrdma/internal/instrument/drivers"
	"vrdma.dev/vrdma/internal/instrument/probe"
	"vrdma.dev/vrdma/internal/instrument/speedtable"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// containers compares the NICs of containers with the host's device, and with TCP through veth and a bridge.
func (t *Table) containers() part {
	p := t.together("containers", t.containersHere(),
		t.containersApart("overlay", [2]string{"a", "b"}), t.containersApart("own network", [2]string{"o", "o"}))
	p.single = true
	return p
}

// containersHere measures two containers of one host, and how much longer a container with a NIC takes to start.
func (t *Table) containersHere() part {
	const who, host, tcp = "container to container: ", ", against host to host", ", against TCP through a bridge"
	return part{
		rows: []speedtable.Row{
			ratioAtMost(who+"send latency, 64 B"+host, 1.15),
			ratioRow(who+"write bandwidth, 64 KiB"+host, 0.9),
			ratioRow(who+"8 B writes"+host, 0.9),
			ratioAtMost(who+"send latency, 64 B"+tcp, 0.3),
			ratioRow(who+"write bandwidth, 64 KiB"+tcp, 4),
			{What: "container's start with a NIC, more than without", Ours: speedtable.Series{Unit: "s"}, Bound: 0.1, AtMost: true},
		},
		measure: func(ctx context.Context, rows []speedtable.Row) error {
			b := &containerRows{Table: t, environments: &testbed.Environments{Lab: t.Lab}}
			defer b.close()
			t.Lab.HostsMade++
			base := &testbed.Host{Lab: t.Lab, Socket: filepath.Join(t.Lab.Dir, fmt.Sprintf("c%d", t.Lab.HostsMade)), IP: "127.0.0.1"}
			cdi := base.Socket + ".cdi"
			d, err := base.Start(ctx, "--network=false", "--store", base.Socket+".db", "--cdi", cdi)
			if err != nil {
				return err
			}
			defer d.Stop()
			nic := "---\n{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: c, tenant: bench}, spec: {network: net}}\n"
			if err := b.declare(ctx, base, testbed.ContainerObjects(testbed.ContainerNames(1))+nic); err != nil {
				return err
			}
			bridge, err := t.Lab.NewNamespace(ctx)
			if err != nil {
				return err
			}
			defer bridge.Close()
			hosts, err := b.fill(ctx, base, bridge, "10.98.0", "a", "b")
			if err != nil {
				return err
			}
			b.note(rows[:5]) // the start is measured with podman only
			inside, outside := testbed.Route{Server: hosts[1], Client: hosts[0]}, base.Loopback()
			err = t.fill(ctx, t.Rounds, []probe.Probe{
				probe.On(probe.Latency(inside, "ib_send_lat", latencySize, 10000), b.label),
				probe.Latency(outside, "ib_send_lat", latencySize, 10000),
				probe.On(probe.Bandwidth(inside, "ib_write_bw", bulkSize, 100000), b.label),
				probe.Bandwidth(outside, "ib_write_bw", bulkSize, 100000),
				probe.On(probe.MessageRate(inside, "ib_write_bw", smallMessage, 500000), b.label),
				probe.MessageRate(outside, "ib_write_bw", smallMessage, 500000),
				probe.Qperf(inside, "tcp_lat", "latency", "s", latencySize),
				b.start("podman run, with a NIC", cdi, "--device", "vrdma.io/nic=bench.c"), // each start follows a TCP tool, so that neither warms up the other
				probe.Qperf(inside, "tcp_bw", "bw", "B/s", bulkSize),
				b.start("podman run", cdi),
			}, rows, []source{{0, 1}, {2, 3}, {4, 5}, {0, 6}, {2, 8}, {7, 9}})
			rows[5].Subtract()
			return err
		},
	}
}

// containersApart measures containers of two hosts through an overlay, or through their own networks, which are routed.
func (t *Table) containersApart(way string, nics [2]string) part {
	row := func(against string, bound float64) speedtable.Row {
		return ratioRow(fmt.Sprintf("containers of two hosts, %s: write bandwidth, 64 KiB, against %s", way, against), bound)
	}
	return part{
		rows: []speedtable.Row{row("host to host", 0.9), row("their own TCP", 1)},
		measure: func(ctx context.Context, rows []speedtable.Row) error {
			b := &containerRows{Table: t, environments: &testbed.Environments{Lab: t.Lab}}
			defer b.close()
			w, err := t.Lab.NewHostPair(ctx, 1500, func(h *testbed.Host) []string { return []string{"--store", h.Socket + ".db"} })
			if err != nil {
				return err
			}
			defer w.Close()
			hosts := [2]*testbed.Host{w.A, w.B}
			var inside [2]*testbed.Host
			for i, h := range hosts {
				other := hosts[1-i]
				if err := b.declare(ctx, h, testbed.OverlayObjects([]string{"b", "a"}[i], other.IP)+testbed.NamespaceNetworkObjects); err != nil {
					return err
				}
				list, err := b.fill(ctx, h, w.Namespaces[i], fmt.Sprintf("10.9%d.0", i), nics[i])
				if err != nil {
					return err
				}
				inside[i] = list[0]
				for _, command := range []string{
					fmt.Sprintf("ip address add 10.9%d.0.254/24 dev box0", i),
					fmt.Sprintf("ip route add 10.9%d.0.0/24 via %s", 1-i, other.IP),
					"echo 1 >/proc/sys/net/ipv4/ip_forward", // in a namespace of ours
				} {
					if _, err := t.Lab.Run(ctx, h.At("sh", "-c", command)...); err != nil {
						return err
					}
				}
			}
			b.note(rows)
			r := testbed.Route{Server: inside[1], Client: inside[0]}
			return t.fill(ctx, t.Rounds, []probe.Probe{
				probe.On(probe.Bandwidth(r, "ib_write_bw", bulkSize, 10000), way),
				probe.Bandwidth(w.Route(), "ib_write_bw", bulkSize, 10000),
				probe.On(probe.Iperf3(r), "in containers"),
			}, rows, []source{{0, 1}, {0, 2}})
		},
	}
}

// containerRows has the containers of a part.
type containerRows struct {
	*Table
	environments *testbed.Environments
	label        string
	containers   []*testbed.Container
}

// close stops the containers.
func (b *containerRows) close() {
	for _, one := range b.containers {
		one.Close()
	}
	b.environments.RemoveImage()
}

// declare declares objects at a host's daemon.
func (b *containerRows) declare(ctx context.Context, h *testbed.Host, text string) error {
	file := h.Socket + ".yaml"
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return err
	}
	_, err := b.Lab.Run(ctx, h.At(b.Lab.Vrdma, "apply", "--socket", h.Socket, "-f", file)...)
	return err
}

// fill starts containers with NICs of a host and connects them with the bridge box0 in a namespace. Their default route is the
// bridge's host.
func (b *containerRows) fill(ctx context.Context, base *testbed.Host, s *testbed.Namespace, subnet string, nics ...string) (hosts []*testbed.Host, err error) {
	label, start, err := b.environments.ContainerStarter(ctx, s)
	if err != nil {
		return nil, err
	}
	b.label = label
	at := s.Enter()
	commands := [][]string{append(at[:len(at):len(at)], "sh", "-c", "ip link add box0 type bridge && ip link set box0 up")}
	for i, name := range nics {
		one, err := start(base, i, name)
		if err != nil {
			return nil, err
		}
		b.containers = append(b.containers, one)
		one.Host.IP = fmt.Sprintf("%s.%d", subnet, i+1)
		hosts = append(hosts, one.Host)
		commands = append(commands,
			append(at[:len(at):len(at)], "sh", "-c", fmt.Sprintf("ip link add box-%s type veth peer name eth0 netns %d && ip link set box-%[1]s master box0 up", name, one.PID)),
			append(one.Enter[:len(one.Enter):len(one.Enter)], "sh", "-c", fmt.Sprintf("ip address add %s/24 dev eth0 && ip link set eth0 up && ip route add default via %s.254", one.Host.IP, subnet)))
	}
	for _, argv := range commands {
		if _, err := b.Lab.Run(ctx, argv...); err != nil {
			return nil, fmt.Errorf("no bridge between containers: %w; %s", err, b.Lab.NamespaceRemedy())
		}
	}
	return hosts, nil
}

// note writes to the rows that namespaces stand for containers.
func (b *containerRows) note(rows []speedtable.Row) {
	if len(b.containers) == 0 || b.containers[0].Host.Container != "" {
		return
	}
	for i := range rows {
		rows[i].Note = b.label
	}
}

// start measures how long a container takes to start and to end.
func (b *containerRows) start(name, cdi string, flags ...string) probe.Probe {
	return probe.Probe{Name: name, Unit: "s", Measure: func(ctx context.Context) (drivers.Reading, error) {
		if b.label != "containers of podman" {
			return drivers.Reading{}, fmt.Errorf("this is measured with podman: here are %s", b.label)
		}
		argv := append([]string{"podman", "--cdi-spec-dir", cdi, "run", "--rm", "--network", "none"}, flags...)
		begin := time.Now()
		_, err := b.Lab.Run(ctx, append(argv, "--rootfs", b.environments.Root(), "true")...)
		return drivers.Reading{Value: time.Since(begin).Seconds()}, err
	}}
}
