package machines

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// ansible returns a command of Debian's ansible-core, which is unpacked and not installed.
func ansible(t *testing.T, dir string) func(argv ...string) []string {
	t.Helper()
	var paths []string
	for _, name := range []string{"ansible-core", "python3-jinja2", "python3-markupsafe", "python3-packaging", "python3-resolvelib", "python3-yaml"} {
		paths = append(paths, filepath.Join(harness.Unpacked(t, name), "usr/lib/python3/dist-packages"))
	}
	env := []string{"env", "HOME=" + dir, "PYTHONPATH=" + strings.Join(paths, ":"), "PYTHONDONTWRITEBYTECODE=1", "LC_ALL=C.UTF-8", "ANSIBLE_HOST_KEY_CHECKING=False",
		"ANSIBLE_LOCAL_TEMP=" + dir, "ANSIBLE_SSH_CONTROL_PATH_DIR=" + dir, "ANSIBLE_NOCOLOR=1", "ANSIBLE_SSH_TRANSFER_METHOD=piped"}
	program := filepath.Join(harness.Unpacked(t, "ansible-core"), "usr/bin/ansible-playbook")
	return func(argv ...string) []string {
		return slices.Concat(env, []string{"/usr/bin/python3", program}, argv)
	}
}

// contributed is a file of contrib/ansible.
func contributed(name string) string {
	return filepath.Join(harness.Root(), "contrib", "ansible", name)
}

// TestPlaybookSyntax: Ansible reads the playbook with both inventories, and finds the machines of each and the tasks.
func TestPlaybookSyntax(t *testing.T) {
	command := ansible(t, harness.Directory(t, nil))
	for inventory, machines := range map[string]int{"two.yaml": 2, "many.yaml": 8} {
		argv := command("-i", contributed(inventory), contributed("prepare.yaml"), "--list-hosts", "--list-tasks")
		out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), fmt.Sprintf("hosts (%d):", machines)) || !strings.Contains(string(out), "Examine each machine with the next") {
			t.Errorf("%s: %v\n%s", inventory, err, out)
		}
	}
}

// TestPlaybook, in the long form: the playbook prepares two machines through OpenSSH, changes nothing the second time, and examines each machine
// with the other. Packages, firewall and processors belong to this machine and are left alone.
func TestPlaybook(t *testing.T) {
	if !harness.All() {
		t.Skip("Ansible takes half a minute: the long form has it")
	}
	a, b := two(t, 9000)
	dir := harness.Directory(t, nil)
	command := ansible(t, dir)
	var hosts strings.Builder
	var key, port [2]string
	for i, m := range []machine{a, b} {
		run(t, m.inside("ip", "link", "set", "lo", "up"))
		run(t, m.inside("ip", "link", "set", "eth0", "mtu", "1500"))
		words := strings.Fields(harness.SSH(t, m.inside, m.ip))
		key[i], port[i] = words[slices.Index(words, "-i")+1], words[slices.Index(words, "-p")+1]
		fmt.Fprintf(&hosts, "m%d ansible_host=%s rdma_address=%[2]s ansible_port=%s ansible_ssh_private_key_file=%s vrdma_path=%s/vrdma-%[1]d\n", i, m.ip, port[i], key[i], dir)
	}
	for i := range key { // each reaches the other
		fmt.Fprintf(&hosts, "[machines]\nm%d rdma_rsh='ssh -F none -p %s -i %s -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null'\n", i, port[1-i], key[1-i])
	}
	hosts.WriteString("[machines:vars]\nansible_user=root\nansible_python_interpreter=/usr/bin/python3\nrdma_interface=eth0\nrdma_firewall=false\nrdma_performance=false\n")
	inventory := filepath.Join(dir, "inventory")
	if err := os.WriteFile(inventory, []byte(hosts.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	prepare := func() string {
		t.Helper()
		argv := command("-i", inventory, contributed("prepare.yaml"), "--skip-tags", "packages", "-e", "vrdma="+harness.Binary())
		text := harness.Spawn(t, a.inside(argv...)).OK(t, 4*minute)
		return strings.Join(strings.Fields(strings.NewReplacer(`"`, "", ",", "").Replace(text)), " ") // doctor wraps its lines
	}
	first := prepare()
	if !strings.Contains(first, "changed=2") || strings.Contains(first, "failed=1") || strings.Count(first, "UDP* port 4791 answers") != 2 || strings.Count(first, "packets of 9000 bytes pass") != 2 {
		t.Errorf("the first time:\n%s", first)
	}
	if second := prepare(); strings.Count(second, "changed=0") != 2 {
		t.Errorf("the second time:\n%s", second)
	}
}
