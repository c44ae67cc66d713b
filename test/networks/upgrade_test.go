package networks

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/etcdtest"
	"vrdma.dev/vrdma/test/harness"
)

// TestUpgrade: the daemons of two hosts that share a store are replaced under traffic. The connections go on. In the
// store the key that says that a host lives and the placement of a NIC stay as they are: no other host sees the host as
// gone, and none could open the NIC. The next daemons change the store as those before.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	w := newUpgradableLab(t, 2)
	w.a.declare(t, twoTenants()+object("NIC", "name: roams, tenant: red", "network: train, address: 10.1.0.9"))
	w.a.ready(t, "red/web", "red/roams")
	w.b.ready(t, "red/db")
	ends := []string{"-V", "-C", "3000", "-S", "300"}
	counted := []*harness.Process{w.b.serve(t, "red/db", "10.1.0.2", ends...)}
	counted = append(counted, w.a.program(t, "red/web", append([]string{"rping", "-c", "-a", "10.1.0.2"}, ends...)...))
	server := w.a.serve(t, "red/roams", "10.1.0.9", "-V")
	w.b.says(t, "10.1.0.9", "get", "nic", "red/roams")
	client := w.b.program(t, "red/db", "rping", "-c", "-a", "10.1.0.9", "-v", "-V")
	client.Printed(t, "ping data", minute)
	before := w.kept(t)
	for range harness.Pick(2, 10) {
		w.a.Upgrade(t)
		w.b.Upgrade(t)
		w.a.declare(t, object("NIC", "name: more, tenant: red", "network: train, address: 10.1.0.30, host: a"))
		w.a.ready(t, "red/more")
		w.b.says(t, "red/more", "get", "nics", "-o", "name")
		w.b.must(t, "delete", "nic", "red/more")
	}
	for _, p := range counted {
		p.OK(t, minute)
	}
	w.b.sends(t, "red/db", client, 1000)
	if server.Ended(0) || client.Ended(0) {
		t.Errorf("a connection did not survive: %s, %s", server.Fate(), client.Fate())
	}
	for i, now := range w.kept(t) {
		if now != before[i] {
			t.Errorf("during the upgrades the store has changed: before %+v, now %+v", before[i], now)
		}
	}
	for _, h := range w.hosts {
		if out := h.must(t, "get", "hosts"); strings.Count(out, "ready") != 2 {
			t.Errorf("the hosts, as host %s sees them:\n%s", h.name, out)
		}
	}
}

// newUpgradableLab makes hosts whose daemons can be replaced.
func newUpgradableLab(t *testing.T, hosts int) *lab {
	t.Helper()
	return newLabWith(t, hosts, 1, func(h *host) {
		h.Daemon = harness.StartUpgradable(t, harness.Options{Addr: h.ip, Network: h.space.Path(), Args: h.args})
	})
}

// An etcdKey is what etcd knows of a key.
type etcdKey struct {
	Key     string `json:"key"`
	Value   string `json:"value"`
	Created int64  `json:"create_revision"`
	Version int64  `json:"version"`
	Lease   int64  `json:"lease"`
}

// kept are the keys that no upgrade may write: those that say that hosts live, and the placement of red/roams.
func (w *lab) kept(t *testing.T) (keys []etcdKey) {
	t.Helper()
	for _, key := range []string{"live/a", "live/b", "place/red/train/roams"} {
		var answer struct {
			Kvs []etcdKey `json:"kvs"`
		}
		text := w.etcd.Ctl("get", etcdtest.Prefix+key, "-w", "json")
		if err := json.Unmarshal([]byte(text), &answer); err != nil || len(answer.Kvs) != 1 {
			t.Fatalf("etcd has of %s: %v\n%s", key, err, text)
		}
		keys = append(keys, answer.Kvs[0])
	}
	return keys
}

// TestUpgradeFails: a next daemon that has opened the store and then ends leaves the old daemon as it was: it has its
// copy of the store, follows other hosts, and changes objects.
func TestUpgradeFails(t *testing.T) {
	t.Parallel()
	w := newUpgradableLab(t, 2)
	w.a.declare(t, twoTenants())
	w.a.ready(t, "red/web")
	w.b.ready(t, "red/db")
	server := w.b.serve(t, "red/db", "10.1.0.2", "-V")
	client := w.a.program(t, "red/web", "rping", "-c", "-a", "10.1.0.2", "-v", "-V")
	client.Printed(t, "ping data", minute)
	pid := w.a.Status(t).Pid
	for range 2 {
		w.a.refuse(t)
	}
	if now := w.a.Status(t).Pid; now != pid {
		t.Errorf("the daemon was process %d and is %d", pid, now)
	}
	w.a.declare(t, object("NIC", "name: more, tenant: red", "network: train, address: 10.1.0.30, host: a"))
	w.a.ready(t, "red/more")
	w.b.declare(t, object("NIC", "name: more, tenant: blue", "network: train, address: 10.1.0.30, host: a"))
	w.a.ready(t, "blue/more")
	w.a.Upgrade(t)
	w.a.sends(t, "red/web", client, 1000)
	if server.Ended(0) || client.Ended(0) {
		t.Errorf("the connection did not survive: %s, %s", server.Fate(), client.Fate())
	}
}

// TestUpgradeEncrypted: connections over an encrypted network go on while the daemons of both hosts are replaced. The
// next daemon continues with the sockets and makes new sessions. A next daemon that fails leaves the old session: the
// connection goes on. Nothing of the network is on the wire in the clear.
func TestUpgradeEncrypted(t *testing.T) {
	t.Parallel()
	harness.Need(t, "tshark")
	w := newUpgradableLab(t, 3)
	capture := filepath.Join(t.TempDir(), "wire.pcap")
	stop := w.cable.Capture(t, capture)
	w.a.declare(t, strings.Replace(threeHosts(), "vni: 100,", "vni: 100, encryption: true,", 1))
	for _, h := range w.hosts {
		h.ready(t, "red/"+h.name)
	}
	ends := []string{"-V", "-C", "500", "-S", "300"}
	counted := []*harness.Process{w.b.serve(t, "red/b", "10.1.0.2", ends...)}
	counted = append(counted, w.a.program(t, "red/a", append([]string{"rping", "-c", "-a", "10.1.0.2"}, ends...)...))
	server := w.c.serve(t, "red/c", "10.1.0.3", "-V")
	client := w.a.program(t, "red/a", "rping", "-c", "-a", "10.1.0.3", "-v", "-V")
	client.Printed(t, "ping data", minute)
	w.a.refuse(t)
	for range harness.Pick(1, 10) {
		w.a.Upgrade(t)
		w.b.Upgrade(t)
		w.a.sends(t, "red/a", client, 100)
	}
	for _, p := range counted {
		p.OK(t, minute)
	}
	if server.Ended(0) || client.Ended(0) {
		t.Errorf("a connection did not survive: %s, %s", server.Fate(), client.Fate())
	}
	stop()
	if clear := output(t, "tshark", "-r", capture, "-Y", "vxlan", "-T", "fields", "-e", "vxlan.vni"); clear != "" {
		t.Errorf("networks are on the wire in the clear: %.100s", clear)
	}
}

// refuse upgrades the daemon with a next daemon that fails after it has opened store and sockets.
func (h *host) refuse(t *testing.T) {
	t.Helper()
	broken := filepath.Join(harness.Directory(t, nil), "broken")
	script := "#!/bin/sh\nexec '" + h.Executable() + "' \"$@\" --cdi /proc/none\n"
	if err := os.WriteFile(broken, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := h.vrdma("upgrade", broken); err == nil || !strings.Contains(out, "continues") {
		t.Errorf("vrdma upgrade with a next daemon that fails: %v\n%s", err, out)
	}
}
