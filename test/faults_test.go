package test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// TestFaultOnDemand: each fault of `vrdma run --fault`, as a program sees it, and the daemon's log of it.
func TestFaultOnDemand(t *testing.T) {
	d := harness.Device(t)
	bin := harness.Compile(t, "faults")
	for _, c := range []struct{ run, fault string }{
		{"rnr", "rnr"},
		{"rnr", "rnr,direction=in"},
		{"rnr_exceeded", "rnr"},
		{"rnr_exceeded", "rnr,direction=in"},
		{"retry", "retry-exceeded,op=send"},
		{"silent", "vanish"},
		{"silent", "drop,op=ack,direction=both"},
		{"silent", "corrupt"},
		{"access", "nak-access"},
		{"access", "nak-access,direction=in"},
		{"qp_error", "qp-error"},
		{"enomem", "reg-mr,message=2"},
		{"completion", "completion-delay,time=1h"},
		{"port", "port-down,message=1,for=100ms"},
		{"port_stays_down", "port-down,message=1"},
		{"device", "device-fatal,message=1"},
		{"gid_change", "gid-change,message=1"},
		{"data", "drop,probability=2%"},
		{"data", "duplicate,probability=5%"},
		{"data", "duplicate,probability=5%,direction=in"},
		{"data", "reorder,probability=2%"},
		{"data", "corrupt,probability=1%"},
		{"data", "delay,time=100us,jitter=1ms,probability=5%"},
		{"data", "rate,rate=1Gbit"},
		{"data", "rnr,probability=1%"},
		{"data", "nak-sequence,probability=1%"},
		{"data", "nak-sequence,probability=1%,direction=in"},
		{"data", "drop,op=read+read-response,probability=5%"},
	} {
		t.Run(c.run+"/"+c.fault, func(t *testing.T) {
			action, _, _ := strings.Cut(c.fault, ",")
			p := d.LaunchWith(t, []string{"--fault", c.fault}, bin, c.run)
			p.OK(t, minute)
			if action == "rate" {
				return // it hits every packet, and is not logged
			}
			want := regexp.MustCompile(`fault run/1: ` + action + `.* pid=` + strconv.Itoa(p.PID()) + `\b`)
			if !harness.Poll(minute, func() bool { return want.MatchString(d.Process.Output()) }) {
				t.Errorf("the daemon's log has no %v", want)
			}
		})
	}
}

// hitsOf are the hits of a process in the daemon's log, without what differs from run to run: queue pairs and PSNs.
func hitsOf(d *harness.Daemon, pid int) (list []string) {
	hit := regexp.MustCompile(`(fault run/\d+: [^,"]*)[,"].* pid=` + strconv.Itoa(pid) + `\b`)
	for _, m := range hit.FindAllStringSubmatch(d.Process.Output(), -1) {
		list = append(list, m[1])
	}
	return list
}

// TestFaultReplay: the same seed and the same traffic have the same faults, and another seed has others.
func TestFaultReplay(t *testing.T) {
	d := harness.Device(t)
	bin := harness.Compile(t, "faults")
	run := func(seed string) []string {
		p := d.LaunchWith(t, []string{"--fault", "drop,probability=2%,seed=" + seed}, bin, "data")
		p.OK(t, minute)
		// The program has ended, and the log may be a moment behind: the last fault marks its end.
		end := d.LaunchWith(t, []string{"--fault", "reg-mr,message=2"}, bin, "enomem")
		end.OK(t, minute)
		if !harness.Poll(minute, func() bool { return len(hitsOf(d, end.PID())) > 0 }) {
			t.Fatal("the daemon's log has no fault of the second program")
		}
		return hitsOf(d, p.PID())
	}
	first, again, other := run("1"), run("1"), run("2")
	if len(first) < 10 || !slices.Equal(first, again) {
		t.Errorf("two runs with one seed: %d hits, then %d:\n%s\n\n%s", len(first), len(again), strings.Join(first, "\n"), strings.Join(again, "\n"))
	}
	if slices.Equal(first, other) {
		t.Error("another seed has the same hits")
	}
}

// TestFaultPerftest: perftest completes although packets are lost, doubled and reordered, and the counters show it.
func TestFaultPerftest(t *testing.T) {
	d := harness.Device(t)
	for _, tool := range []string{"ib_send_bw -s 65536", "ib_write_bw -s 65536", "ib_read_bw -s 65536"} {
		port := harness.FreePort(t)
		args := append(strings.Fields(tool), "-n", "100", "-p", strconv.Itoa(port))
		server := d.LaunchWith(t, []string{"--fault", "drop,probability=0.5%"}, args...)
		harness.Listening(t, server, port, minute)
		client := d.LaunchWith(t, []string{"--fault", "drop,probability=0.5%", "--fault", "duplicate,probability=1%", "--fault", "reorder,probability=1%"}, append(args, "127.0.0.1")...)
		client.OK(t, minute)
		server.OK(t, minute)
	}
	if n := d.Status(t).Counters["completer_retry_err"]; n == 0 {
		t.Error("no requester went back to an earlier packet")
	}
}

// TestFaultConnections: rping sees a rejected connection, and one that gets no answer.
func TestFaultConnections(t *testing.T) {
	d := harness.Device(t)
	rping := func(port int, more ...string) []string {
		return append([]string{"rping", "-a", "127.0.0.1", "-p", strconv.Itoa(port), "-C", "3", "-v"}, more...)
	}
	for _, c := range []struct{ fault, want string }{
		{"cm-reject", "RDMA_CM_EVENT_REJECTED, error 28"},
		{"cm-timeout", "RDMA_CM_EVENT_UNREACHABLE, error -110"},
	} {
		port := harness.FreePort(t)
		server := d.Launch(t, rping(port, "-s")...)
		d.AwaitManaged(t, server, port)
		client := d.LaunchWith(t, []string{"--fault", c.fault}, rping(port, "-c")...)
		if code := client.Wait(t, minute); code == 0 || !strings.Contains(client.Output(), c.want) {
			t.Errorf("%s: the client ended with %d, want an error with %q:\n%s", c.fault, code, c.want, client.Output())
		}
		// The next client, without a fault, is served.
		d.Launch(t, rping(port, "-c")...).OK(t, minute)
		server.OK(t, minute)
	}
	port := harness.FreePort(t)
	server := d.LaunchWith(t, []string{"--fault", "cm-reject,direction=in,count=1"}, rping(port, "-s")...)
	d.AwaitManaged(t, server, port)
	client := d.Launch(t, rping(port, "-c")...)
	if code := client.Wait(t, minute); code == 0 || !strings.Contains(client.Output(), "RDMA_CM_EVENT_REJECTED") {
		t.Errorf("a server that rejects: the client ended with %d:\n%s", code, client.Output())
	}
	d.Launch(t, rping(port, "-c")...).OK(t, minute)
	server.OK(t, minute)
}

// vrdma runs a command against the daemon, which has to succeed.
func vrdma(t *testing.T, d *harness.Daemon, args ...string) string {
	t.Helper()
	return harness.Spawn(t, d.Command(args...)).OK(t, minute)
}

// TestFaultObjects: faults of the default NIC are added, listed and removed while a program runs, which gets the events.
func TestFaultObjects(t *testing.T) {
	d := harness.Start(t, harness.Options{})
	vrdma(t, d, "fault", "add", "--name", "first", "drop,packet=1") // opens the store, which stays open
	vrdma(t, d, "delete", "fault", "default/first")
	d.NoLeaks(t)
	watch := d.Launch(t, "stdbuf", "-oL", "ibv_asyncwatch")
	watch.Printed(t, "async event FD", minute)
	if out := vrdma(t, d, "fault", "add", "--name", "blink", "port-down,for=1ms"); !strings.Contains(out, "fault/default/blink created") {
		t.Errorf("fault add printed %q", out)
	}
	watch.Printed(t, "IBV_EVENT_PORT_ERR", minute)
	watch.Printed(t, "IBV_EVENT_PORT_ACTIVE", minute)
	if out := vrdma(t, d, "fault", "list"); !regexp.MustCompile(`default/blink +all +1 +port-down,for=1ms`).MatchString(out) {
		t.Errorf("fault list printed:\n%s", out)
	}
	vrdma(t, d, "fault", "add", "--name", "down", "port-down")
	info := func() string { return d.Run(t, minute, "ibv_devinfo") }
	if !harness.Poll(minute, func() bool { return strings.Contains(info(), "PORT_DOWN") }) {
		t.Errorf("ibv_devinfo does not show that the port is down:\n%s", info())
	}
	if out := vrdma(t, d, "describe", "fault", "default/down"); !strings.Contains(out, "port-down") || !strings.Contains(out, "Hits") {
		t.Errorf("describe printed:\n%s", out)
	}
	vrdma(t, d, "fault", "remove", "down")
	if !harness.Poll(minute, func() bool { return strings.Contains(info(), "PORT_ACTIVE") }) {
		t.Errorf("the port stays down without its fault:\n%s", info())
	}
	vrdma(t, d, "fault", "add", "gid-change")
	watch.Printed(t, "IBV_EVENT_GID_CHANGE", minute)
	vrdma(t, d, "fault", "add", "device-fatal")
	watch.Printed(t, "IBV_EVENT_DEVICE_FATAL", minute)
	watch.Signal(syscall.SIGTERM)
	watch.Wait(t, minute)

	file := filepath.Join(harness.Directory(t, nil), "fault.yaml")
	text := "apiVersion: vrdma.io/v1\nkind: Fault\nmetadata: {name: wrong, tenant: default}\nspec:\n  rules:\n  - drop\n  - drop,op=lend\n"
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	p := harness.Spawn(t, d.Command("apply", "-f", file))
	if code := p.Wait(t, minute); code == 0 || !strings.Contains(p.Output(), file+":7: Fault default/wrong: spec.rules[1]: op:") {
		t.Errorf("apply of a wrong rule ended with %d:\n%s", code, p.Output())
	}
}

// TestFaultSuspend: the NIC of two programs stands still in the middle of a transfer, until the fault is removed.
func TestFaultSuspend(t *testing.T) {
	d := harness.Start(t, harness.Options{})
	vrdma(t, d, "fault", "add", "--name", "still", "suspend,message=20")
	port := harness.FreePort(t)
	args := []string{"ib_send_bw", "-s", "65536", "-n", "1000", "-p", strconv.Itoa(port)}
	server := d.Launch(t, args...)
	harness.Listening(t, server, port, minute)
	client := d.Launch(t, append(args, "127.0.0.1")...)
	hit := regexp.MustCompile(`default/still +all +1 +suspend,message=20`)
	if !harness.Poll(minute, func() bool { return hit.MatchString(vrdma(t, d, "fault", "list")) }) {
		t.Fatalf("the fault has not happened:\n%s", vrdma(t, d, "fault", "list"))
	}
	if client.Ended(0) || server.Ended(0) {
		t.Errorf("a program has ended although its NIC stands still:\n%s\n%s", client.Output(), server.Output())
	}
	vrdma(t, d, "fault", "remove", "still")
	client.OK(t, minute)
	server.OK(t, minute)
	refused := harness.Spawn(t, d.Command("run", "--fault", "suspend,for=1s", "--", "true"))
	if code := refused.Wait(t, minute); code != 2 || !strings.Contains(refused.Output(), "vrdma fault add suspend,for=1s") {
		t.Errorf("a program suspends its NIC: exit status %d, want 2\n%s", code, refused.Output())
	}
}

// TestFaultSeen: a capture and a trace show what was hit.
func TestFaultSeen(t *testing.T) {
	d := harness.Device(t)
	bin := harness.Compile(t, "faults")
	file := filepath.Join(harness.Directory(t, nil), "c.pcap")
	capture := harness.Spawn(t, d.Command("pcap", "-w", file))
	captured := func(want string) func() bool {
		return func() bool {
			b, _ := os.ReadFile(file)
			return bytes.Contains(b, []byte(want))
		}
	}
	// The capture runs when it has the header of the file.
	if !harness.Poll(minute, func() bool { i, err := os.Stat(file); return err == nil && i.Size() >= 24 }) {
		t.Fatal("the capture does not begin")
	}
	cmd := d.Command("trace", "--", bin, "silent")
	cmd.Env = append(cmd.Env, "VRDMA_FAULT=drop,packet=1 drop,packet=2-100")
	trace := harness.Spawn(t, cmd)
	out := trace.OK(t, minute)
	if !strings.Contains(out, "fault run/1: drop flow 1 packet 1 message 1 send out") || !strings.Contains(out, "fault run/2: drop") {
		t.Errorf("the trace does not show the faults:\n%s", out)
	}
	if !harness.Poll(minute, captured("vrdma: fault run/1: drop flow 1 packet 1 message 1 send out")) {
		t.Error("the capture does not show the first fault")
	}
	capture.Signal(syscall.SIGINT)
	capture.OK(t, minute)
}
