package containers

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/cable"
	"vrdma.dev/vrdma/test/etcdtest"
	"vrdma.dev/vrdma/test/harness"
)

// movers are two hosts with podman and CRIU that share a store, and a wire between them.
func movers(t *testing.T) (a, b *host, groups string) {
	t.Helper()
	groups = controlGroup(t)
	root := os.Getenv("VRDMA_CRIU_ROOT")
	store := etcdtest.Start(t, 1)
	var hosts []*host
	var spaces []*cable.Namespace
	for range 2 {
		h := newHostOf(t, root, "", "bookworm")
		hosts = append(hosts, h)
		spaces = append(spaces, cable.NamespaceAt(t, fmt.Sprintf("/proc/%d/ns/net", h.pid)))
	}
	cable.Veth(t, spaces[0], spaces[1], "eth0", 1500)
	for i, h := range hosts {
		ip := fmt.Sprintf("10.99.0.%d", i+1)
		spaces[i].Address(t, "eth0", ip+"/24")
		for _, to := range store.Endpoints() {
			reach(t, spaces[i], to)
		}
		h.run(t, "mkdir", "-p", "/etc/criu", "/run/etcd", "/usr/lib/criu")
		h.write(t, "/usr/bin/vrdma", "#!/bin/sh\nVRDMA_SOCKET="+socket+" exec /opt/vrdma/vrdma \"$@\"\n") // CRIU has no environment
		h.run(t, "chmod", "755", "/usr/bin/vrdma")
		h.run(t, "ln", "-s", "/opt/vrdma/vrdma_criu_plugin.so", "/usr/lib/criu/vrdma_plugin.so")
		h.run(t, "sed", "-i", "/^cgroups/d", "/etc/containers/containers.conf") // CRIU freezes a control group
		for _, f := range []string{"default", "runc", "crun"} {
			h.write(t, "/etc/criu/"+f+".conf", "network-lock nftables\n")
		}
		for file, from := range map[string]string{"ca": store.CA, "certificate": store.Certificate, "key": store.Key} {
			h.bring(t, from, "/run/etcd/"+file)
		}
		h.write(t, "/run/etcd/store.yaml", "ca: /run/etcd/ca\ncertificate: /run/etcd/certificate\nkey: /run/etcd/key\n")
		h.serve(t, "--store", store.URL(), "--store-config", "/run/etcd/store.yaml", "--host-name", string(rune('a'+i)), "--underlay", ip)
	}
	return hosts[0], hosts[1], groups
}

// reach makes an address of the machine reachable in a namespace.
func reach(t *testing.T, n *cable.Namespace, to string) {
	t.Helper()
	var l net.Listener
	var err error
	n.Do(t, func() { l, err = net.Listen("tcp", to) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				s, err := net.Dial("tcp", to)
				if err != nil {
					return
				}
				defer s.Close()
				go func() { io.Copy(s, c); s.Close() }()
				io.Copy(c, s)
			}()
		}
	}()
}

// logs are the last parts of CRIU's logs.
func (h *host) logs(name string) (all string) {
	filepath.WalkDir(fmt.Sprintf("/proc/%d/root/var/lib/containers", h.pid), func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Name() == name {
			text, _ := os.ReadFile(path)
			all += path + "\n" + harness.Tail(string(text), 3000) + "\n"
		}
		return nil
	})
	return all
}

// TestLiveMigration
func TestLiveMigration(t *testing.T) {
	a, b, groups := movers(t)
	a.apply(t, tenants)
	time.Sleep(time.Second)
	a.run(t, "sh", "-c", "tar -c -C /images/bookworm --exclude=./proc --exclude=./sys . | podman import --change ENV=PATH=/usr/bin:/bin - rdma && podman save -o /tmp/rdma.tar rdma")
	b.bring(t, filepath.Join(fmt.Sprintf("/proc/%d/root", a.pid), "/tmp/rdma.tar"), "/tmp/rdma.tar")
	b.run(t, "podman", "load", "-i", "/tmp/rdma.tar")
	args := []string{"podman", "run", "-d", "--name", "web", "--network", "none", "--cgroup-parent", groups, "--device", "vrdma.io/nic=red.web", "rdma", "rping", "-s", "-P", "-V", "-v", "-a", "10.1.0.1"}
	t.Log(a.run(t, args...))
	s := a.start(t, "sleep", "1000")
	a.listening(t, s, "10.1.0.1:7174")
	c := b.start(t, container{"bookworm", "red.db", nil}.argv("stdbuf", "-oL", "rping", "-c", "-v", "-V", "-a", "10.1.0.1")...)
	c.Printed(t, "ping data", minute)
	p := a.start(t, "podman", "container", "checkpoint", "-e", "/tmp/web.tar", "--keep", "web")
	if p.Wait(t, minute) != 0 {
		t.Fatal(p.Output(), a.logs("dump.log"), "VRDMALOG", a.logs("vrdma.log"), a.run(t, "vrdma", "status"))
	}
	for _, f := range []string{"/tmp/web.tar"} {
		b.bring(t, filepath.Join(fmt.Sprintf("/proc/%d/root", a.pid), f), f)
	}
	p = b.start(t, "podman", "container", "restore", "-i", "/tmp/web.tar", "--keep")
	if p.Wait(t, minute) != 0 {
		t.Fatal(p.Output(), b.logs("restore.log"))
	}
	n := len(c.Output())
	if !harness.Poll(minute, func() bool { return len(c.Output()) > n+10000 }) {
		t.Errorf("client: %s\n%s", c.Fate(), harness.Tail(c.Output(), 5))
	}
}
