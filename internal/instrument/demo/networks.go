package demo

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"vrdma.dev/vrdma/internal/exit"
	"vrdma.dev/vrdma/internal/instrument/podmanhosts"
)

// Networks shows virtual networks between two hosts on one machine: two tenants with equal addresses, and a policy that changes under
// traffic. The hosts are network namespaces, each with a daemon; etcd on the first has the declared objects.
//
// Networks makes the hosts, declares the tenants, shows their traffic and revokes one connection. It writes what it does to out. inside
// says that the process is in namespaces of its own; else Networks runs the program again in such namespaces.
func Networks(out io.Writer, inside bool) error {
	etcd, err := podmanhosts.FindEtcd()
	if err != nil {
		return err
	}
	if !inside {
		return insideNamespaces()
	}
	d := &networks{out: out, server: etcd}
	err = d.run()
	return errors.Join(err, d.close())
}

// insideNamespaces runs the program again in new namespaces, where it may make networks. Users other than root get a user namespace, too.
func insideNamespaces() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	args := []string{"--net", "--pid", "--fork", "--mount-proc", "--kill-child"}
	if os.Geteuid() != 0 {
		args = append([]string{"--user", "--map-root-user"}, args...)
	}
	cmd := exec.Command("unshare", append(args, self, "demo", "networks", "--inside")...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		return &exit.Error{Status: ended.ExitCode(), Err: fmt.Errorf("the demo did not end well; if unshare was refused, allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, or kernel.apparmor_restrict_unprivileged_userns=0), or run it as root")}
	}
	return err
}

// networks is two hosts with their programs.
type networks struct {
	out    io.Writer
	dir    string
	hosts  [2]*host
	kids   []*program
	server string      // the program etcd
	etcd   *transcript // its output
}

// A host is a network namespace with a daemon.
type host struct {
	name, ip, socket string
	pid              int // of a process in the namespace
	log              *transcript
}

const demoStore = "10.99.0.1:2379"

func (d *networks) say(format string, args ...any) { fmt.Fprintf(d.out, format+"\n", args...) }

// A program is a command that runs.
type program struct {
	cmd   *exec.Cmd
	said  *transcript
	ended chan struct{} // closed then
}

// start starts a command that ends with the demo.
func (d *networks) start(out *transcript, argv ...string) (*program, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+d.dir, "XDG_STATE_HOME="+d.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &program{cmd, out, make(chan struct{})}
	go func() {
		cmd.Wait() // programs that are refused fail: what they said is what counts
		close(p.ended)
	}()
	d.kids = append(d.kids, p)
	return p, nil
}

// in is a command line that runs in the host's network namespace.
func (h *host) in(argv ...string) []string {
	return append([]string{"nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", h.pid), "--"}, argv...)
}

func run1(argv ...string) (string, error) {
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, bytes.TrimSpace(out))
	}
	return string(out), nil
}

// build makes the hosts, the wire and the store.
func (d *networks) build() (err error) {
	if d.dir, err = os.MkdirTemp("/tmp", "vrdma-demo"); err != nil {
		return err
	}
	for i, name := range []string{"node-a", "node-b"} {
		h := &host{name: name, ip: fmt.Sprintf("10.99.0.%d", i+1), socket: filepath.Join(d.dir, name, "vrdma.sock"), log: &transcript{}}
		holder, err := d.start(h.log, "unshare", "--net", "sh", "-c", "echo there; exec sleep 3600")
		if err != nil {
			return err
		}
		h.pid = holder.cmd.Process.Pid
		if err := holder.await("there"); err != nil {
			return err
		}
		d.hosts[i] = h
	}
	a, b := d.hosts[0], d.hosts[1]
	steps := [][]string{a.in("ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", fmt.Sprint(b.pid))}
	for _, h := range d.hosts {
		steps = append(steps, h.in("ip", "link", "set", "lo", "up"), h.in("ip", "addr", "add", h.ip+"/24", "dev", "eth0"), h.in("ip", "link", "set", "eth0", "up"))
	}
	for _, step := range steps {
		if _, err := run1(step...); err != nil {
			return err
		}
	}
	d.etcd = &transcript{}
	url := "http://" + demoStore
	_, err = d.start(d.etcd, a.in(d.server, "--data-dir", filepath.Join(d.dir, "etcd"), "--listen-client-urls", url, "--advertise-client-urls", url,
		"--listen-peer-urls", "http://127.0.0.1:2380")...)
	return err
}

// serve starts the daemons.
func (d *networks) serve() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	var daemons []*program
	for _, h := range d.hosts {
		if err := os.Mkdir(filepath.Dir(h.socket), 0o700); err != nil {
			return err
		}
		daemon, err := d.start(h.log, h.in(self, "daemon", "--socket", h.socket, "--host-name", h.name, "--addr", h.ip, "--underlay", h.ip, "--store", "etcd://"+demoStore)...)
		if err != nil {
			return err
		}
		daemons = append(daemons, daemon)
	}
	for i, h := range d.hosts {
		if err := daemons[i].await("msg=serving"); err != nil {
			return fmt.Errorf("%s: %w\netcd: %s", h.name, err, d.etcd.last())
		}
	}
	return nil
}

// vrdma runs a vrdma command at a host's daemon.
func (d *networks) vrdma(h *host, stdin string, args ...string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	cmd := exec.Command(self, append([]string{"--socket", h.socket}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+d.dir, "XDG_STATE_HOME="+d.dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("vrdma %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// program starts a program that has a NIC.
func (d *networks) program(h *host, nic string, argv ...string) (*program, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return d.start(&transcript{}, h.in(append([]string{self, "run", "-q", "--socket", h.socket, "--nic", nic, "--"}, argv...)...)...)
}

// demoObjects are the declared objects.
const demoObjects = `{apiVersion: vrdma.io/v1, kind: Tenant, metadata: {name: TENANT}}
---
{apiVersion: vrdma.io/v1, kind: Network, metadata: {name: train, tenant: TENANT}, spec: {subnets: [10.1.0.0/24]}}
---
{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: web, tenant: TENANT}, spec: {network: train, address: 10.1.0.1, host: node-a}}
---
{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: db, tenant: TENANT}, spec: {network: train, address: 10.1.0.2, host: node-b}}
`

const demoRule = `{apiVersion: vrdma.io/v1, kind: Policy, metadata: {name: no-web, tenant: red}, spec: {nics: {names: [db]}, deny: [{direction: in, peer: {nic: web}}]}}
`

func (d *networks) run() error {
	d.say("Two hosts, node-a (10.99.0.1) and node-b (10.99.0.2), etcd on node-a, and a vrdma daemon on each …")
	if err := d.build(); err != nil {
		return err
	}
	if err := d.serve(); err != nil {
		return err
	}
	a, b := d.hosts[0], d.hosts[1]
	text := strings.ReplaceAll(demoObjects, "TENANT", "red") + "---\n" + strings.ReplaceAll(demoObjects, "TENANT", "blue")
	if _, err := d.vrdma(a, text, "apply", "-f", "-"); err != nil {
		return err
	}
	for _, args := range [][]string{{"get", "hosts"}, {"get", "nics"}} {
		out, err := d.vrdma(a, "", args...)
		if err != nil {
			return err
		}
		d.say("\n$ vrdma %s\n%s", strings.Join(args, " "), out)
	}
	d.say("Both tenants have 10.1.0.1 on node-a and 10.1.0.2 on node-b. rping of each, from host to host …")
	clients := map[string]*program{}
	for _, of := range []string{"red", "blue"} {
		client, err := d.ping(of)
		if err != nil {
			return err
		}
		clients[of] = client
		d.say("  %-5s %s", of, client.said.first("ping data"))
	}
	d.say("\nNow a rule, at node-b, while both talk: red/db takes nothing from red/web.\n\n$ vrdma apply -f - <<< '%s'", strings.TrimSpace(demoRule))
	begin := time.Now()
	if _, err := d.vrdma(b, demoRule, "apply", "-f", "-"); err != nil {
		return err
	}
	select {
	case <-clients["red"].ended:
	case <-time.After(time.Minute):
		return errors.New("red's connection goes on")
	}
	d.say("red's connection ended %v after the command began. blue's has not noticed: %d lines of ping data, and counting.", time.Since(begin).Round(time.Millisecond), clients["blue"].said.count("ping data"))
	before := clients["blue"].said.count("ping data")
	for deadline := time.Now().Add(time.Minute); clients["blue"].said.count("ping data") == before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			return errors.New("blue's connection stands still")
		}
	}
	// Each host enforces the rule at its end. The one that is second finds the connection closed.
	for _, h := range d.hosts {
		out, err := d.vrdma(h, "", "events", "--last", "20")
		if err != nil {
			return err
		}
		d.say("\n$ vrdma events | grep NIC.red    # on %s", h.name)
		for line := range strings.Lines(out) {
			if strings.Contains(line, "NIC red") {
				d.say("%s", strings.TrimSpace(line))
			}
		}
	}
	return nil
}

// ping starts rping between the two NICs of a tenant.
func (d *networks) ping(of string) (*program, error) {
	a, b := d.hosts[0], d.hosts[1]
	if err := d.ready(b, of+"/db"); err != nil {
		return nil, err
	}
	server, err := d.program(b, of+"/db", "rping", "-s", "-a", "10.1.0.2", "-v")
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) { // until the server listens
		client, err := d.program(a, of+"/web", "rping", "-c", "-a", "10.1.0.2", "-v")
		if err != nil {
			return nil, err
		}
		if client.await("ping data") == nil {
			return client, nil
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("%s's rping does not connect: %s %s", of, client.said.last(), server.said.last())
		}
	}
}

// ready waits until a NIC is ready on a host.
func (d *networks) ready(h *host, nic string) error {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		out, err := d.vrdma(h, "", "get", "nic", nic)
		if err == nil && strings.Contains(out, "ready") {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s has no NIC %s: %s", h.name, nic, out)
		}
	}
}

// close ends all programs and removes the files.
func (d *networks) close() error {
	for i := len(d.kids) - 1; i >= 0; i-- {
		d.kids[i].cmd.Process.Kill() // fails if it has ended before
		<-d.kids[i].ended
	}
	if d.dir == "" {
		return nil
	}
	return os.RemoveAll(d.dir)
}

// A transcript is the output of a program.
type transcript struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (t *transcript) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.Write(b)
}

func (t *transcript) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}

// await waits until the program has written what.
func (p *program) await(what string) error {
	for deadline := time.Now().Add(30 * time.Second); !strings.Contains(p.said.String(), what); {
		select {
		case <-p.ended:
			return fmt.Errorf("it has ended: %s", p.said.last())
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("no %q after half a minute: %s", what, p.said.last())
		}
	}
	return nil
}

func (t *transcript) count(what string) int { return strings.Count(t.String(), what) }

// first is the first line with what in it.
func (t *transcript) first(what string) string {
	for line := range strings.Lines(t.String()) {
		if strings.Contains(line, what) {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// last is the end of the output.
func (t *transcript) last() string {
	s := strings.TrimSpace(t.String())
	if i := len(s) - 1000; i > 0 {
		s = "…" + s[i:]
	}
	return s
}
