package tenants

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
	"vrdma.dev/vrdma/test/harness"
)

const openFile = `
apiVersion: vrdma.io/v1
kind: Tenant
metadata: {name: red}
---
apiVersion: vrdma.io/v1
kind: Network
metadata: {name: net, tenant: red}
spec: {subnets: [10.1.0.0/24]}
---
apiVersion: vrdma.io/v1
kind: NIC
metadata: {name: a, tenant: red}
spec: {network: net, open: {%s}}
`

// The kernel's credentials decide which programs may open a NIC, and the rule can change.
func TestOpen(t *testing.T) {
	nobodys := harness.Nobody()
	group := controlGroup(t)
	for _, test := range []struct {
		open  string
		admit bool
		why   string
	}{
		{"uids: [65534]", true, ""},
		{"gids: [65534]", true, ""},
		{"uids: [1234], gids: [77]", true, ""},               // by a supplementary group
		{"uids: [1234]", false, "permission denied for NIC"}, // the NIC's directory is closed
		{fmt.Sprintf("container: %q", group), true, ""},
		{"container: /nowhere", false, "may not open it (spec.open.container)"},
		{"uids: [65534], container: /nowhere", false, "may not open it (spec.open.container)"},
		{"namespace: /proc/self/ns/net", true, ""}, // the daemon's
		{"namespace: /proc/self/ns/mnt", false, "only the network namespace"},
		{"namespace: /nothing", false, "only the network namespace"}, // the error does not say whether it exists
	} {
		t.Run(test.open, func(t *testing.T) {
			d := startAt(t, harness.Directory(t, nil), fmt.Sprintf(openFile, test.open), 0o600, 0o755)
			cmd := d.at("red/a").command("ibv_devinfo")
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobodys.Uid, Gid: nobodys.Gid, Groups: []uint32{77}}}
			p := harness.Spawn(t, cmd)
			code := p.Wait(t, minute)
			switch {
			case test.admit && (code != 0 || !strings.Contains(p.Output(), "hca_id:\trxe0")):
				t.Errorf("exit %d, want that it is admitted:\n%s", code, p.Output())
			case !test.admit && (code == 0 || !strings.Contains(p.Output(), test.why)):
				t.Errorf("exit %d, want that it is refused, since %q:\n%s", code, test.why, p.Output())
			case !test.admit && test.why != "permission denied for NIC" && !strings.Contains(d.noted(&d.refused), test.why):
				t.Errorf("the event says %q, want %q", d.noted(&d.refused), test.why)
			}
			// The daemon's owner may always open it.
			d.at("red/a").run(t, "ibv_devinfo")
		})
	}
}

// A user in spec.open can open that NIC of a daemon whose directory is closed, as root's default is, and nothing else there.
func TestOpenInClosedDirectory(t *testing.T) {
	dir := harness.Directory(t, nil)
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	d := startAt(t, dir, fmt.Sprintf(openFile, "uids: [65534]")+`---
apiVersion: vrdma.io/v1
kind: NIC
metadata: {name: b, tenant: red}
spec: {network: net, open: {uids: [1234]}}
`, 0o600, 0o700)
	d.mayOpen(t, "red/a", "")
	d.mayOpen(t, "red/b", "spec.open of the NIC must name user 65534")
	sh := func(script string) error {
		return nobody(exec.Command("sh", "-c", script, "sh", dir, d.place.Socket)).Run()
	}
	for _, script := range []string{`ls "$1"`, `ls "$2.nics"`, `ls "$2.d"`, `cat "$2.d/libvrdma.so"`, `touch "$1/new"`} {
		if sh(script) == nil {
			t.Errorf("%s: done, want that another user may not", script)
		}
	}
	cmd := nobody(exec.Command(harness.Binary(), "--socket", d.place.Socket, "status"))
	if out, err := cmd.CombinedOutput(); err == nil {
		t.Errorf("another user sees the daemon's status:\n%s", out)
	}
	c := *d.world.NIC("red", "a")
	c.Spec.Open = tenant.Who{UIDs: []int{1234}}
	if err := d.provisioner.Put(d.world.TenantOf(&c), d.world.NetworkOf(&c), &c); err != nil {
		t.Fatal(err)
	}
	d.mayOpen(t, "red/a", "(permission denied at "+dir+")")
}

// mayOpen checks that nobody may open a NIC, or that it is told why not.
func (d *daemon) mayOpen(t *testing.T, nic, why string) {
	t.Helper()
	p := harness.Spawn(t, nobody(d.at(nic).command("ibv_devinfo")))
	if code := p.Wait(t, minute); (code == 0) != (why == "") || !strings.Contains(p.Output(), why) {
		t.Errorf("%s: exit %d, want %q:\n%s", nic, code, why, p.Output())
	}
}

// controlGroup is ours.
func controlGroup(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	longest := "/"
	for line := range strings.Lines(string(text)) {
		if f := strings.SplitN(strings.TrimSpace(line), ":", 3); len(f) == 3 && len(f[2]) > len(longest) {
			longest = f[2]
		}
	}
	return longest
}

// A program that reaches the listener through a mounted directory, as in a container, gets the reason. A program that
// loses the right to open the NIC loses the NIC.
func TestOpenChanges(t *testing.T) {
	d := startAt(t, harness.Directory(t, nil), fmt.Sprintf(openFile, "uids: [65534]"), 0o600, 0o755)
	fatal := harness.Spawn(t, nobody(d.at("red/a").command(harness.Compile(t, "fatal"))))
	fatal.Printed(t, "ready", minute)
	c := *d.world.NIC("red", "a")
	c.Spec.Open = tenant.Who{UIDs: []int{1234}}
	if err := d.provisioner.Put(d.world.TenantOf(&c), d.world.NetworkOf(&c), &c); err != nil {
		t.Fatal(err)
	}
	fatal.OK(t, minute)
	socket := d.provisioner.Socket(key("red/a"))
	p := harness.Spawn(t, exec.Command("unshare", "--mount", "sh", "-c", `mount --bind "$1" "$2" &&
		export LD_PRELOAD=$2/vrdma.sock.d/libvrdma.so && exec setpriv --reuid 65534 --regid 65534 --clear-groups ibv_devinfo`,
		"sh", filepath.Dir(socket), harness.Directory(t, nil)))
	if code := p.Wait(t, minute); code == 0 || !strings.Contains(p.Output(), "NIC red/a is not for you: user 65534") {
		t.Errorf("exit %d, want that libvrdma.so says why:\n%s", code, p.Output())
	}
	// A NIC without a rule is open to users that the socket's mode admits.
	c.Spec.Open = tenant.Who{}
	if err := d.provisioner.Put(d.world.TenantOf(&c), d.world.NetworkOf(&c), &c); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket's mode is %v (%v), want the daemon's 0600", info.Mode(), err)
	}
}

// A program needs only the mounted directory: here in a mount namespace without anything else of the daemon, read-only.
func TestMountedDirectory(t *testing.T) {
	harness.Need(t, "unshare", "mount", "ibv_devinfo")
	d := start(t, example(t))
	awaitTrees(t, d, 5)
	at := harness.Directory(t, nil)
	script := fmt.Sprintf(`mount --bind -o ro %[1]s %[2]s && mount -o remount,bind,ro %[2]s && mount -t tmpfs none %[3]s &&
		export VRDMA_SOCKET=%[2]s/vrdma.sock LD_PRELOAD=%[2]s/vrdma.sock.d/libvrdma.so SYSFS_PATH=%[2]s/vrdma.sock.d/sys
		ls %[3]s; exec ibv_devinfo -v`, filepath.Dir(d.provisioner.Socket(key("red/slow"))), at, filepath.Dir(d.place.Socket))
	out := harness.Spawn(t, exec.Command("unshare", "-m", "sh", "-c", script)).OK(t, minute)
	if !strings.Contains(out, "hca_id:\trxe0") || !strings.Contains(out, "10.1.0.3") {
		t.Errorf("want rxe0 with 10.1.0.3:\n%s", out)
	}
	// A query for NICs there shows this one only.
	list, err := protocol.QueryNICs(d.provisioner.Socket(key("red/slow")))
	if err != nil || len(list) != 1 || list[0].Name != "red/slow" {
		t.Errorf("NICs at the listener of red/slow: %v, %v, want that one", list, err)
	}
}

// TestUnusedPort: the device tree of an unused NIC is incomplete. A program that looks at its port, in any way, finds
// it complete without opening the device.
func TestUnusedPort(t *testing.T) {
	harness.Need(t, "cat", "ls", "stat")
	d := start(t, example(t))
	awaitTrees(t, d, 5)
	for nic, argv := range map[string][]string{
		"red/web":  {"cat", "/sys/class/infiniband/rxe0/ports/1/gids/0"},
		"red/db":   {"ls", "/sys/class/infiniband/rxe0/ports/1"},
		"red/slow": {"stat", "-c", "gids %n", "/sys/class/infiniband/rxe0/ports/1/counters"},
		"blue/web": {"sh", "-c", "cd /sys/class/infiniband/rxe0 && ls ports/1"},
		"blue/db":  {"cat", "/sys/class/infiniband/rxe0/ports/1/counters/port_xmit_data", "/sys/class/infiniband/rxe0/ports/1/gids/0"},
	} {
		socket := d.provisioner.Socket(key(nic))
		port := socket + ".d/sys/class/infiniband/rxe0/ports"
		if _, err := os.Stat(port); err == nil {
			t.Errorf("%s, which nobody has used, has a port", nic)
		}
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Env = append(os.Environ(), "VRDMA_SOCKET="+socket, "LD_PRELOAD="+socket+".d/libvrdma.so")
		if out := harness.Spawn(t, cmd).OK(t, minute); !strings.Contains(out, "gids") && !strings.Contains(out, ":0a01:00") {
			t.Errorf("%s: %v printed %q", nic, argv, out)
		}
		if _, err := os.Stat(socket + ".d/sys/unfinished"); err == nil {
			t.Errorf("%s is unfinished still", nic)
		}
	}
}
