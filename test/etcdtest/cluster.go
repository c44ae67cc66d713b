package etcdtest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/harness"
)

// Prefix is the prefix of the keys that the daemons' user may read and write.
const Prefix = "/vrdma/v1/"

// User is the daemons' user, without other rights. Its certificate has this common name.
const User = "vrdma"

// A Cluster is some members.
type Cluster struct {
	t       testing.TB
	Members []*Member
	// Files: the authority, the daemons' certificate and key, and the file with the daemons' password.
	CA, Certificate, Key, PasswordFile string
	dir, server, control               string
	root                               [2]string // root's certificate and key
}

// A Member is one etcd.
type Member struct {
	c      *Cluster
	name   string
	client string // where it listens
	peer   string
	proxy  *proxy // where clients reach it
	dir    string
	mu     sync.Mutex
	cmd    *exec.Cmd // nil: it does not run
	ended  chan struct{}
}

// Start starts n members with authentication.
func Start(t testing.TB, n int) *Cluster {
	t.Helper()
	c := &Cluster{
		t: t, dir: t.TempDir(), server: filepath.Join(harness.Unpacked(t, "etcd-server"), "usr/bin/etcd"),
		control: filepath.Join(harness.Unpacked(t, "etcd-client"), "usr/bin/etcdctl"),
	}
	c.certify()
	c.PasswordFile = c.write("password", []byte("correct horse\n"))
	for i := range n {
		m := &Member{c: c, name: fmt.Sprintf("m%d", i), client: freePort(t), peer: freePort(t)}
		m.dir = filepath.Join(c.dir, m.name)
		m.proxy = openProxy(t, m.client)
		c.Members = append(c.Members, m)
	}
	t.Cleanup(c.stop)
	for _, m := range c.Members {
		m.Start()
	}
	c.Ready()
	c.permit()
	return c
}

// Endpoints are the members' addresses for clients.
func (c *Cluster) Endpoints() (list []string) {
	for _, m := range c.Members {
		list = append(list, m.proxy.address)
	}
	return list
}

// Direct are the members' own addresses, without the proxies.
func (c *Cluster) Direct() (list []string) {
	for _, m := range c.Members {
		list = append(list, m.client)
	}
	return list
}

// URL is the cluster's name for --store.
func (c *Cluster) URL() string { return "etcd://" + strings.Join(c.Endpoints(), ",") }

// permit creates the users and the role of docs/how-to/etcd.md, and enables authentication.
func (c *Cluster) permit() {
	c.t.Helper()
	c.Ctl("user", "add", "root", "--no-password")
	c.Ctl("role", "add", "vrdma")
	c.Ctl("role", "grant-permission", "vrdma", "readwrite", "--prefix=true", Prefix)
	c.Ctl("user", "add", User+":correct horse")
	c.Ctl("user", "grant-role", User, "vrdma")
	c.Ctl("user", "grant-role", "root", "root")
	c.Ctl("auth", "enable")
}

// Ctl runs etcdctl as root, without the proxies.
func (c *Cluster) Ctl(args ...string) string {
	c.t.Helper()
	out, err := c.ctl(30*time.Second, args...)
	if err != nil {
		c.t.Fatalf("etcdctl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (c *Cluster) ctl(patience time.Duration, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.control, append([]string{"--endpoints", strings.Join(c.Direct(), ","), "--cacert", c.CA, "--cert", c.root[0], "--key", c.root[1],
		"--command-timeout", patience.String()}, args...)...)
	cmd.Env = append(os.Environ(), "ETCDCTL_API=3")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Ready waits until the running members have a leader and answer.
func (c *Cluster) Ready() {
	c.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		out, err := c.ctl(2*time.Second, "get", Prefix+"nothing")
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("etcd does not get ready: %v\n%s%s", err, out, c.logs())
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (c *Cluster) logs() string {
	var b strings.Builder
	for _, m := range c.Members {
		text, _ := os.ReadFile(m.dir + ".log")
		if i := len(text) - 2000; i > 0 {
			text = text[i:]
		}
		fmt.Fprintf(&b, "--- %s:\n%s\n", m.name, text)
	}
	return b.String()
}

func (c *Cluster) stop() {
	for _, m := range c.Members {
		m.Kill()
		m.proxy.close()
	}
}

// Start starts the member with its old data, unless it was wiped.
func (m *Member) Start() {
	m.c.t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cmd != nil {
		return
	}
	var peers []string
	for _, p := range m.c.Members {
		peers = append(peers, p.name+"=http://"+p.peer)
	}
	log, err := os.OpenFile(m.dir+".log", os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		m.c.t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(m.c.server, "--name", m.name, "--data-dir", m.dir, "--initial-cluster-state", "new",
		"--listen-client-urls", "https://"+m.client, "--advertise-client-urls", "https://"+m.client,
		"--listen-peer-urls", "http://"+m.peer, "--initial-advertise-peer-urls", "http://"+m.peer, "--initial-cluster", strings.Join(peers, ","),
		"--heartbeat-interval", "50", "--election-timeout", "500", "--log-level", "error", "--logger", "zap",
		"--client-cert-auth", "--trusted-ca-file", m.c.CA, "--cert-file", filepath.Join(m.c.dir, "server.crt"), "--key-file", filepath.Join(m.c.dir, "server.key"))
	cmd.Stdout, cmd.Stderr = log, log
	if err := harness.Begin(cmd); err != nil {
		m.c.t.Fatal(err)
	}
	m.cmd, m.ended = cmd, make(chan struct{})
	go func(ended chan struct{}) {
		cmd.Wait()
		close(ended)
	}(m.ended)
}

// Kill kills it.
func (m *Member) Kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cmd == nil {
		return
	}
	m.cmd.Process.Kill()
	<-m.ended
	m.cmd = nil
}

// Pause stops its process.
func (m *Member) Pause() { m.signal(syscall.SIGSTOP) }

// Resume continues its process.
func (m *Member) Resume() { m.signal(syscall.SIGCONT) }

func (m *Member) signal(s syscall.Signal) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cmd != nil {
		m.cmd.Process.Signal(s)
	}
}

// Wipe kills it and removes its data.
func (m *Member) Wipe() {
	m.Kill()
	if err := os.RemoveAll(m.dir); err != nil {
		m.c.t.Fatal(err)
	}
}

// Cut cuts clients off, or restores their connections. Data in between is lost.
func (m *Member) Cut(cut bool) { m.proxy.cut(cut) }

// Mute delays its answers to clients, and lets requests pass.
func (m *Member) Mute(mute bool) { m.proxy.mute(mute) }

// freePort returns an address that no process listens at.
func freePort(t testing.TB) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", harness.FreePort(t))
}

func (c *Cluster) write(name string, text []byte) string {
	path := filepath.Join(c.dir, name)
	if err := os.WriteFile(path, bytes.Clone(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return path
}
