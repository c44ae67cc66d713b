package vm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/instrument/rxeguest"
	"vrdma.dev/vrdma/test/guest"
	"vrdma.dev/vrdma/test/harness"
)

// TestLibvirt starts two domains of type qemu from the output of `vrdma guest libvirt`, and runs ib_write_bw between
// them. Debian's libvirt is unpacked and runs in its own mount namespace, where its writes to /etc, /var and /run end
// with the test.
func TestLibvirt(t *testing.T) {
	if !harness.All() {
		t.Skip("two machines boot: long form")
	}
	d := start(t, libvirtWorld)
	v := newLibvirt(t)
	image := guest.Ours(t)
	var list []*machine
	for i, nic := range []string{"red/a", "red/b"} {
		m := &machine{test: t, nic: nic, ip: fmt.Sprintf("10.1.0.%d", i+1), socket: "/run/vrdma/vrdma.sock"}
		m.Guest = guest.Adopt(t, func(line, console string) *harness.Process {
			return v.create(t, d, nic, image, line)
		})
		list = append(list, m)
	}
	for _, m := range list {
		m.AwaitStart(t)
		m.startAgent(t)
	}
	server := list[1].verbs(t, "ib_write_bw", "-F", "-n", "100")
	list[1].Await(t, server, 18515)
	if got := programs(t, d); got != "ib_write_bw@red-b" { // it has our device, not the kernel's
		t.Errorf("status shows %q, want ib_write_bw@red-b", got)
	}
	client := list[0].verbs(t, "ib_write_bw", "-F", "-n", "100", list[1].ip)
	done(t, client)
	done(t, server)
	if !strings.Contains(client.Output(), "BW average") {
		t.Errorf("ib_write_bw says\n%s", client.Output())
	}
}

// libvirtWorld is world with a network for the machines' Ethernet cards.
var libvirtWorld = strings.Replace(world, "subnets: [10.1.0.0/24]", "subnets: [10.1.0.0/24], way: vxlan, vni: 77", 1)

// A libvirt is a daemon of libvirt's.
type libvirt struct {
	dir    string
	daemon *harness.Process
}

// newLibvirt starts one.
func newLibvirt(t *testing.T) *libvirt {
	t.Helper()
	v := &libvirt{dir: harness.Directory(t, nil)}
	var lower []string
	for _, p := range []string{"libvirt-daemon", "libvirt-daemon-driver-qemu", "libvirt-clients", "libvirt0", "libssh-4", "libyajl2"} {
		lower = append(lower, harness.Unpacked(t, p)+"/usr")
	}
	script := fmt.Sprintf(`set -e
		mount -t overlay overlay -o lowerdir=%s:/usr /usr
		for d in etc var; do
			mkdir %[2]s/$d %[2]s/$d.work
			mount -t overlay overlay -o lowerdir=/$d,upperdir=%[2]s/$d,workdir=%[2]s/$d.work /$d
		done
		mount -t tmpfs run /run
		mkdir -p /etc/libvirt /var/lib/libvirt /var/log/libvirt /var/cache/libvirt /run/libvirt
		cat >/etc/libvirt/qemu.conf <<-'EOF'
			user = "root"
			group = "root"
			security_driver = "none"
			cgroup_controllers = []
			namespaces = []
			remember_owner = 0
			stdio_handler = "file"
		EOF
		for f in passwd group; do echo libvirt-qemu:x:0:0::/:/bin/false >>/etc/$f; done # it asks for that one before it reads qemu.conf
		printf 'auth_unix_rw = "none"\n' >/etc/libvirt/libvirtd.conf
		libvirtd & wait $!`, strings.Join(lower, ":"), v.dir)
	v.daemon = harness.Spawn(t, exec.Command("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script))
	var out []byte
	if !harness.Poll(limit, func() bool {
		var err error
		out, err = v.virsh("version").CombinedOutput()
		return err == nil || v.daemon.Ended(0)
	}) || v.daemon.Ended(0) {
		t.Fatalf("libvirtd does not answer: %s\n%s", out, v.daemon.Output())
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("libvirtd says:\n%s", harness.Tail(v.daemon.Output(), 30))
		}
	})
	return v
}

// virsh is a command of libvirt's.
func (v *libvirt) virsh(args ...string) *exec.Cmd {
	pid := fmt.Sprint(v.daemon.PID())
	return exec.Command("nsenter", append([]string{"-t", pid, "-m", "--pid=/proc/" + pid + "/ns/pid_for_children", "virsh", "-q", "-c", "qemu:///system"}, args...)...)
}

// create starts a domain with a NIC. The returned machine lives as long as the domain.
func (v *libvirt) create(t *testing.T, d *harness.Daemon, nic, image, line string) *harness.Process {
	t.Helper()
	out, err := d.Command("guest", "libvirt", nic, "--tcg").CombinedOutput()
	if err != nil {
		t.Fatalf("vrdma guest libvirt: %v\n%s", err, out)
	}
	// Each part says where it belongs.
	parts := map[string]string{}
	var at string
	for l := range strings.Lines(string(out)) {
		if m := regexp.MustCompile(`<!-- into <(\w+)>`).FindStringSubmatch(l); m != nil {
			at = m[1]
			continue
		}
		parts[at] += l
	}
	name := strings.ReplaceAll(nic, "/", "-")
	boot := rxeguest.Guest{IP4: "dhcp", Image: guest.Image(t)}
	xml := fmt.Sprintf(`<domain type='qemu' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
<name>%s</name><memory unit='MiB'>320</memory>
<os><type arch='x86_64' machine='q35'>hvm</type><kernel>%s/vmlinux</kernel><initrd>%s</initrd><cmdline>%s</cmdline></os>
<features><acpi/></features>
%s
<devices>
<emulator>/usr/bin/qemu-system-x86_64</emulator>
<channel type='unix'><source mode='connect' path='%s'/><target type='virtio' name='line'/></channel>
%s</devices>
</domain>
`, name, guest.Image(t), image, boot.Kernel(), parts["domain"], line, parts["devices"])
	file := filepath.Join(v.dir, name+".xml")
	if err := os.WriteFile(file, []byte(xml), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := v.virsh("create", file).CombinedOutput(); err != nil {
		t.Fatalf("virsh create: %v\n%s\n%s", err, out, xml)
	}
	t.Cleanup(func() {
		if t.Failed() {
			text, _ := os.ReadFile(filepath.Join(v.dir, "var/log/libvirt/qemu", name+".log"))
			t.Logf("%s\n%s", name, text)
		}
		v.virsh("destroy", name).Run() // it may have ended
	})
	return harness.Spawn(t, v.virsh("event", "--domain", name, "--event", "lifecycle", "--loop"))
}
