package tenants

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

const commandsFile = `apiVersion: vrdma.io/v1
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
spec: {network: net, address: 10.1.0.9}
`

const secondNIC = `---
apiVersion: vrdma.io/v1
kind: NIC
metadata: {name: b, tenant: red}
spec: {network: net, host: nowhere}
`

// wrongFile has an error that the command finds, and one that the daemon finds.
const wrongFile = `apiVersion: vrdma.io/v1
kind: NIC
metadata: {name: c, tenant: red}
spec: {network: net, addres: 10.1.0.3}
---
apiVersion: vrdma.io/v1
kind: NIC
metadata: {name: d, tenant: red}
spec: {network: missing}
`

// TestObjectCommands: apply with its flags, diff, edit, wait and completion, as a user calls them.
func TestObjectCommands(t *testing.T) {
	d := harness.Start(t, harness.Options{Args: []string{"--usage", "none"}})
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	one, two, empty, wrong := file("one.yaml", commandsFile), file("two.yaml", commandsFile+secondNIC), file("empty.yaml", ""), file("wrong.yaml", wrongFile)
	for _, c := range []struct {
		args   string
		status int
		want   []string
		not    string
	}{
		{"diff -f " + two, 1, []string{"+++ file/nic/red/b", "+  host: nowhere"}, ""},
		{"apply -f " + two, 0, []string{"nic/red/b created", "host nowhere, which does not exist"}, ""},
		{"diff -f " + two, 0, nil, "nic"},
		{"diff -f " + one, 0, nil, "nic"},
		{"diff --prune -f " + one, 1, []string{"--- declared/nic/red/b", "-  host: nowhere"}, "red/a"},
		{"apply --dry-run=client -f " + one, 0, []string{"nic/red/a parsed (dry run)"}, ""},
		{"apply --prune --dry-run=server -f " + one, 0, []string{"nic/red/b deleted (dry run)", "nic/red/a unchanged"}, ""},
		{"wait nic red/b --for elsewhere", 0, []string{"nic/red/b elsewhere"}, ""},
		{"apply --prune -f " + one, 0, []string{"nic/red/b deleted", "tenant/red unchanged"}, ""},
		{"wait nic red/b --for delete", 0, []string{"nic/red/b delete"}, ""},
		{"wait nic red/a", 0, []string{"nic/red/a ready"}, ""},
		{"wait nic red/a --for failed --timeout 0s", 1, []string{"is not failed: it is ready"}, ""},
		{"edit nic red/a", 0, []string{"nic/red/a changed"}, ""},
		{"get nics", 0, []string{"node-x"}, "anywhere"},
		{"apply -f " + empty, 0, []string{"the files declare no objects"}, ""},
		{"apply -f " + wrong, 1, []string{`wrong.yaml:4: NIC red/c: spec: there is no field "addres"`, "wrong.yaml:9: NIC red/d", "missing"}, ""},
		{"store import --dry-run " + one, 0, []string{"nic/red/a changed (dry run)"}, ""},
		{"fault add --nic red/a --name lossy drop,probability=1%", 0, []string{"fault/red/lossy created"}, ""},
		{"__complete get ", 0, []string{"nics\n", "policies\n", "faults\n"}, ""},
		{"__complete get faults ", 0, []string{"red/lossy\n"}, "red/a"},
		{"__complete fault remove ", 0, []string{"red/lossy\n"}, "red/a"},
		{"__complete fault remove red/other ", 0, []string{"red/lossy\n"}, ""},
		{"__complete fault add ", 0, []string{"drop\n", "cm-reject\n"}, ""},
		{"__complete fault add --tenant ", 0, []string{"red\n"}, "red/"},
		{"__complete run --fault ", 0, []string{"drop\n"}, ""},
		{"__complete policy test ", 0, []string{"red/a\n"}, ""},
		{"__complete policy test red/a ", 0, []string{"red/a\n"}, ""},
		{"__complete policy test red/a red/a ", 0, nil, "red/a"},
		{"__complete policy test --op ", 0, []string{"atomic\n"}, ""},
		{"__complete audit ", 0, []string{"red\n", "red/a\n"}, "lossy"},
		{"__complete events ", 0, []string{"red\n", "red/a\n"}, "lossy"},
		{"__complete usage --tenant ", 0, []string{"red\n"}, "red/"},
		{"__complete usage -o ", 0, []string{"csv\n"}, "podman"},
		{"__complete nic args -o ", 0, []string{"podman\n", "oci\n"}, "json"},
		{"__complete doctor --for ", 0, nil, "unwatched"},
		{"fault remove red/lossy", 0, []string{"fault/red/lossy deleted"}, ""},
		{"__complete describe nic ", 0, []string{"red/a\n"}, ""},
		{"__complete get nics -o ", 0, []string{"wide\n", "json\n"}, "podman"},
		{"__complete run --nic ", 0, []string{"red/a\n"}, ""},
		{"status", 0, []string{".db, of this daemon alone"}, ""},
	} {
		args := strings.Split(c.args, " ")
		cmd := d.Command(args...)
		cmd.Env = append(cmd.Env, "EDITOR=sed -i '$a\\  host: node-x'", "VISUAL=")
		p := harness.Spawn(t, cmd)
		code, out := p.Wait(t, minute), p.Output()
		if code != c.status {
			t.Errorf("vrdma %s: exit %d, want %d:\n%s", c.args, code, c.status, out)
		}
		for _, want := range c.want {
			if !strings.Contains(out, want) {
				t.Errorf("vrdma %s does not say %q:\n%s", c.args, want, out)
			}
		}
		if c.not != "" && strings.Contains(out, c.not) {
			t.Errorf("vrdma %s says %q:\n%s", c.args, c.not, out)
		}
	}
	// Nobody there is status 3, for every command.
	other := harness.At(filepath.Join(dir, "vrdma.sock"), nil)
	for _, args := range [][]string{{"status"}, {"stop"}, {"get", "nics"}, {"diff", "-f", one}, {"pcap", "-w", filepath.Join(dir, "x.pcap")}} {
		if p := harness.Spawn(t, other.Command(args...)); p.Wait(t, minute) != 3 {
			t.Errorf("vrdma %s without a daemon: exit %d, want 3:\n%s", strings.Join(args, " "), p.Code(), p.Output())
		}
	}
	absent := harness.At(filepath.Join(dir, "nope", "vrdma.sock"), nil)
	p := harness.Spawn(t, absent.Command("run", "-q", "--", "true"))
	why := fmt.Sprintf("vrdma: no daemon runs at %s/nope/vrdma.sock, and one cannot be started there: the socket's directory: stat %[1]s/nope: no such file or directory; have its owner start it", dir)
	if p.Wait(t, minute) != 3 || !strings.HasPrefix(p.Output(), why) {
		t.Errorf("vrdma run with a socket in no directory: exit %d, want 3, and %s:\n%s", p.Code(), why, p.Output())
	}
	if _, err := os.Stat(filepath.Join(dir, "nope")); err == nil {
		t.Error("vrdma run has made the directory of its socket")
	}
}
