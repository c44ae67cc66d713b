// Package machines tests the preparation of machines for experiments: `vrdma doctor --peer` through OpenSSH between two network namespaces
// that stand for hosts, and the Ansible playbook of contrib/ansible.
package machines

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/instrument/doctor"
	"vrdma.dev/vrdma/test/cable"
	"vrdma.dev/vrdma/test/harness"
)

const minute = time.Minute

func TestMain(m *testing.M) { harness.Main(m) }

// A machine is a network namespace.
type machine struct {
	*cable.Namespace
	ip string
}

// two are machines on one wire with this MTU.
func two(t *testing.T, mtu int) (a, b machine) {
	t.Helper()
	harness.Build(t)
	harness.Need(t, "nsenter", "ip")
	a, b = machine{cable.NewNamespace(t), "10.96.0.1"}, machine{cable.NewNamespace(t), "10.96.0.2"}
	cable.Veth(t, a.Namespace, b.Namespace, "eth0", mtu)
	for _, m := range []machine{a, b} {
		m.Address(t, "eth0", m.ip+"/24")
	}
	return a, b
}

// inside is a command on the machine.
func (m machine) inside(argv ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"--net=" + m.Path(), "--"}, argv...)...)
}

// between returns what `vrdma doctor --peer` finds between two machines, by name, and its exit status.
func between(t *testing.T, from machine, rsh, to string) (found map[string]doctor.Finding, status int) {
	t.Helper()
	p := harness.Spawn(t, from.inside(harness.Binary(), "doctor", "--peer", "root@"+to, "--rsh", rsh, "-o", "json"))
	status = p.Wait(t, 4*minute)
	var pair doctor.Pair
	if err := json.Unmarshal([]byte(p.Stdout()), &pair); err != nil {
		t.Fatalf("%v\n%s", err, p.Output())
	}
	if len(pair.Here) == 0 || len(pair.There) != len(pair.Here) {
		t.Errorf("%d findings here and %d there", len(pair.Here), len(pair.There))
	}
	found = make(map[string]doctor.Finding)
	for _, f := range pair.Between {
		found[f.Name] = f
		if f.Outcome != doctor.Yes && f.Do == "" {
			t.Errorf("%s: nothing is said of what to do", f.Name)
		}
	}
	return found, status
}

// TestDoctorPeer examines two machines through OpenSSH: as they are, with a small MTU on one side, and with a machine that answers ssh
// and nothing else, as behind a firewall. Nothing is left on the other machine.
func TestDoctorPeer(t *testing.T) {
	a, b := two(t, 9000)
	ssh := harness.SSH(t, b.inside, b.ip)
	dir := harness.Directory(t, nil)
	rsh, commands := filepath.Join(dir, "rsh"), filepath.Join(dir, "commands")
	if err := os.WriteFile(rsh, []byte(fmt.Sprintf("#!/bin/sh\necho \"$@\" >>%s\nexec %s \"$@\"\n", commands, ssh)), 0o755); err != nil {
		t.Fatal(err)
	}
	found, status := between(t, a, rsh, b.ip)
	if status != 0 || found["UDP"].Outcome != doctor.Yes || !strings.HasPrefix(found["UDP"].Found, "port 4791 answers") || found["TCP"].Outcome != doctor.Yes {
		t.Errorf("exit status %d: %+v", status, found)
	}
	if f := found["packets"]; f.Outcome != doctor.Yes || f.Found != "of 9000 bytes pass unfragmented" {
		t.Errorf("jumbo frames: %+v", f)
	}
	if f := found["versions"]; f.Outcome != doctor.Yes {
		t.Errorf("one machine has two versions: %+v", f)
	}

	run(t, b.inside("ip", "link", "set", "eth0", "mtu", "1500"))
	text := harness.Spawn(t, a.inside(harness.Binary(), "doctor", "--peer", "root@"+b.ip, "--rsh", rsh)).OK(t, 4*minute)
	for _, want := range []string{"THIS MACHINE\n", "ROOT@" + b.ip + "\n", "BOTH\n", "between the two\n", "measuring tools\n", "packets: of 1500 bytes pass unfragmented"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}

	port := strings.Fields(ssh)[slices.Index(strings.Fields(ssh), "-p")+1]
	for _, rule := range []string{"pref 1 ipproto tcp sport " + port + " lookup main", "pref 2 ipproto tcp blackhole", "pref 2 ipproto udp blackhole"} {
		run(t, b.inside(append([]string{"ip", "rule", "add"}, strings.Fields(rule)...)...))
	}
	found, status = between(t, a, rsh, b.ip)
	for _, name := range []string{"UDP", "TCP"} {
		if f := found[name]; f.Outcome != doctor.No || !strings.Contains(f.Do, "firewall") {
			t.Errorf("behind a firewall, %s: %+v", name, f)
		}
	}
	if status != 3 {
		t.Errorf("exit status %d, want 3", status)
	}
	log, err := os.ReadFile(commands)
	places := regexp.MustCompile(`/tmp/vrdma-doctor\.\w+`).FindAllString(string(log), -1)
	if err != nil || len(places) == 0 {
		t.Errorf("no command runs vrdma: %v\n%s", err, log)
	}
	for _, place := range places {
		if _, err := os.Stat(place); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", place, err)
		}
	}
}

func run(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, out)
	}
}
