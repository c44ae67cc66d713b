package tenants

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/platform/launch"
	"vrdma.dev/vrdma/internal/tenancy/control"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
	"vrdma.dev/vrdma/test/harness"
)

// startDaemon starts a real daemon of root whose store is a file.
func startDaemon(t *testing.T, store string) *harness.Daemon {
	t.Helper()
	return harness.Start(t, harness.Options{Args: []string{"--store", store, "--network=false"}})
}

// as runs vrdma as a user.
func as(d *harness.Daemon, uid int, args ...string) (string, error) {
	cmd := d.Command(args...)
	if uid != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
		cmd.Dir = "/"
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func wantOut(t *testing.T, d *harness.Daemon, uid int, want string, args ...string) {
	t.Helper()
	if out, err := as(d, uid, args...); err != nil || !strings.Contains(out, want) {
		t.Errorf("user %d: vrdma %s: %v, want %q in\n%s", uid, strings.Join(args, " "), err, want, out)
	}
}

func wantRefused(t *testing.T, d *harness.Daemon, uid int, want string, args ...string) {
	t.Helper()
	if out, err := as(d, uid, args...); err == nil || !strings.Contains(out, want) {
		t.Errorf("user %d: vrdma %s: %v, want it refused with %q, not\n%s", uid, strings.Join(args, " "), err, want, out)
	}
}

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(harness.Directory(t, nil), name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

const administered = `
apiVersion: vrdma.io/v1
kind: Tenant
metadata: {name: %[1]s}
spec: {administrators: {uids: [%[2]d]}}
---
apiVersion: vrdma.io/v1
kind: Network
metadata: {name: train, tenant: %[1]s}
spec: {subnets: [10.1.0.0/24]}
---
apiVersion: vrdma.io/v1
kind: NIC
metadata: {name: web, tenant: %[1]s}
spec: {network: train, address: 10.1.0.1}
`

func aNIC(of, name string) string {
	return fmt.Sprintf("apiVersion: vrdma.io/v1\nkind: NIC\nmetadata: {name: %s, tenant: %s}\nspec: {network: train}\n", name, of)
}

// The kernel identifies the caller: the operator may do everything, two administrators each manage their own tenant,
// others nothing. While no tenant has an administrator, other users cannot even connect.
func TestAdministrators(t *testing.T) {
	const red, blue, stranger = 41001, 41002, 41003
	d := startDaemon(t, filepath.Join(harness.Directory(t, nil), "store"))
	if out, err := as(d, stranger, "get", "nics"); err == nil {
		t.Errorf("nothing is declared, and a stranger is answered: %s", out)
	}
	world := writeFile(t, "world.yaml", fmt.Sprintf(administered, "red", red)+"---"+fmt.Sprintf(administered, "blue", blue))
	wantOut(t, d, 0, "red/web", "apply", "-f", world)

	redNIC, blueNIC := writeFile(t, "red.yaml", aNIC("red", "a")), writeFile(t, "blue.yaml", aNIC("blue", "a"))
	wantOut(t, d, red, "red/a", "apply", "-f", redNIC)
	wantOut(t, d, blue, "blue/a", "apply", "-f", blueNIC)
	wantRefused(t, d, red, "not an administrator", "apply", "-f", blueNIC)
	wantRefused(t, d, red, "only the operator", "apply", "-f", world)
	wantRefused(t, d, stranger, "may not change", "apply", "-f", redNIC)
	wantRefused(t, d, stranger, "may not change", "delete", "nic", "red/a")
	wantRefused(t, d, red, "only the operator", "store", "export")
	for uid, sees := range map[int]string{red: "red", blue: "blue", stranger: ""} {
		out, err := as(d, uid, "get", "nics")
		for _, name := range []string{"red", "blue"} {
			if err != nil || strings.Contains(out, name) != (name == sees) {
				t.Errorf("user %d sees, %v:\n%s", uid, err, out)
			}
		}
	}
	wantOut(t, d, 0, fmt.Sprintf("applied      NIC red/a by vrdma (uid %d", red), "events")
	wantRefused(t, d, stranger, "permission denied for the daemon", "stop")

	// Root of a user namespace has the user number 0 there, and no rights here.
	cmd := exec.Command("unshare", "--pid", "--fork", "--", harness.Binary(), "--socket", d.Socket, "apply", "-f", redNIC)
	if out, err := cmd.CombinedOutput(); err == nil {
		t.Errorf("root of another process namespace may apply: %s", out)
	}

	// Without administrators the socket is removed.
	wantOut(t, d, 0, "deleted", "delete", "tenant", "red", "blue", "--force")
	for _, path := range protocol.TenantPlaces(d.Socket, os.Geteuid()) {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s is still there", path)
		}
	}
	d.Stop(t)
}

// A daemon that is killed at any moment of an apply has all of the change or nothing afterwards, with matching address
// allocations.
func TestKilledInApply(t *testing.T) {
	store := filepath.Join(harness.Directory(t, nil), "store")
	const nics = 200
	kept := 0
	for round := range 5 {
		d := startDaemon(t, store)
		before := declared(t, d)
		if before%nics != 0 {
			t.Fatalf("round %d: %d NICs, want a multiple of %d", round, before, nics)
		}
		if before < kept {
			t.Fatalf("round %d: %d NICs, %d had been acknowledged", round, before, kept)
		}
		var begun atomic.Bool
		done := make(chan bool)
		go func() {
			begun.Store(true)
			_, err := control.Apply(d.Socket, []control.File{{Name: "many", Text: many(fmt.Sprintf("t%d", round), nics)}}, false)
			done <- err == nil
		}()
		for !begun.Load() {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Duration(round*round) * 4 * time.Millisecond) // somewhere in it
		syscall.Kill(d.PID(), syscall.SIGKILL)
		if <-done {
			kept = before + nics
		}
		d.Process.Wait(t, time.Minute)
	}
	d := startDaemon(t, store)
	n := declared(t, d)
	if n%nics != 0 || n < kept {
		t.Errorf("%d NICs at the end, %d had been acknowledged", n, kept)
	}
	t.Logf("%d of %d were committed", n/nics, 5)
	// An uncommitted change can be applied again, addresses included.
	if _, err := control.Apply(d.Socket, []control.File{{Name: "many", Text: many("t4", nics)}}, false); err != nil {
		t.Error(err)
	}
	d.Stop(t)
}

func declared(t *testing.T, d *harness.Daemon) int {
	t.Helper()
	r, err := control.Get(d.Socket, control.Selection{Kind: tenant.KindNIC})
	if err != nil {
		t.Fatal(err)
	}
	return len(r.Items)
}

// many is a tenant with many NICs.
func many(name string, n int) string {
	text := fmt.Sprintf(administered, name, 41001)
	for i := range n - 1 {
		text += "---\n" + aNIC(name, fmt.Sprintf("n%d", i))
	}
	return text
}

// linesWith are the lines of text that have every part.
func linesWith(text string, parts ...string) (found []string) {
	for line := range strings.Lines(text) {
		if !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(line, p) }) {
			found = append(found, line)
		}
	}
	return found
}

// The events of a tenant list connections, refusals with their rule, and revocations. Those of another tenant do not.
func TestConnectionEvents(t *testing.T) {
	harness.Need(t, "rping")
	d := startDaemon(t, filepath.Join(harness.Directory(t, nil), "store"))
	example := filepath.Join(harness.Root(), "examples/two-tenants.yaml")
	wantOut(t, d, 0, "red/web", "apply", "-f", example)
	server := d.LaunchWith(t, []string{"--nic", "red/db"}, "rping", "-s", "-P", "-a", "10.1.0.2")
	place, err := launch.Place{Socket: d.Socket}.NIC("red", "db")
	if err != nil {
		t.Fatal(err)
	}
	if !harness.Poll(time.Minute, func() bool {
		st, err := protocol.QueryStatus(place.Socket)
		return err == nil && len(st.Connections) > 0 && strings.HasPrefix(strings.ToLower(st.Connections[0].State), "listen")
	}) {
		t.Fatalf("rping does not listen:\n%s", server.Output())
	}
	event := func(parts ...string) bool {
		out, err := as(d, 0, "events", "red")
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return len(linesWith(out, parts...)) > 0
	}
	client := d.LaunchWith(t, []string{"--nic", "red/web"}, "rping", "-c", "-a", "10.1.0.2")
	uid := fmt.Sprintf("uid %d", os.Getuid())
	for _, want := range [][]string{{"opened", "NIC red/web", "rping", uid}, {"connected", "NIC red/web", "10.1.0.2", "rping", uid}, {"connected", "NIC red/db", "10.1.0.1"}} {
		if !harness.Poll(time.Minute, func() bool { return event(want...) }) {
			out, _ := as(d, 0, "events")
			t.Fatalf("no event with %q:\n%s%s", want, out, client.Output())
		}
	}
	// Killing the program ends a connection at both ends.
	count := func(parts ...string) int {
		out, _ := as(d, 0, "events", "red")
		return len(linesWith(out, parts...))
	}
	killed := d.LaunchWith(t, []string{"--nic", "red/web"}, "rping", "-c", "-a", "10.1.0.2")
	if !harness.Poll(time.Minute, func() bool { return count(" connected", "NIC red/web") == 2 && count(" connected", "NIC red/db") == 2 }) {
		t.Fatalf("no second connection:\n%s", killed.Output())
	}
	killed.End()
	for _, nic := range []string{"NIC red/web", "NIC red/db"} {
		if !harness.Poll(time.Minute, func() bool { return count("disconnected", nic) == 1 }) {
			out, _ := as(d, 0, "events")
			t.Errorf("%s: a connection whose program was killed has not ended once:\n%s", nic, out)
		}
	}
	refused := d.LaunchWith(t, []string{"--nic", "red/slow"}, "rping", "-c", "-a", "10.1.0.2", "-C", "1")
	refused.Wait(t, time.Minute)
	if !harness.Poll(time.Minute, func() bool { return event("refused", "NIC red/slow", "no-batch-to-store") }) {
		out, _ := as(d, 0, "events")
		t.Errorf("the refusal is no event:\n%s", out)
	}
	none := writeFile(t, "none.yaml", "apiVersion: vrdma.io/v1\nkind: Policy\nmetadata: {name: none, tenant: red}\nspec: {nics: {network: train}, deny: [{direction: in}]}\n")
	wantOut(t, d, 0, "none", "apply", "-f", none)
	if !harness.Poll(time.Minute, func() bool { return event("revoked", "NIC red/", "policy red/none") }) {
		out, _ := as(d, 0, "events")
		t.Errorf("the revocation is no event:\n%s", out)
	}
	client.Wait(t, time.Minute)
	out, _ := as(d, 0, "events", "red")
	for _, nic := range []string{"NIC red/web", "NIC red/db"} {
		if n := len(linesWith(out, "revoked", nic)); n != 1 {
			t.Errorf("the end of one connection is %d events of %s, want 1:\n%s", n, nic, out)
		}
	}
	if !harness.Poll(time.Minute, func() bool { return event("closed", "NIC red/web", "rping", uid) }) {
		out, _ := as(d, 0, "events")
		t.Errorf("the end is no event:\n%s", out)
	}
	if out, _ := as(d, 0, "events", "blue"); strings.Contains(out, "connected") {
		t.Errorf("blue has red's events:\n%s", out)
	}
	wantRefused(t, d, 0, "in use by rping", "delete", "nic", "red/db")
	server.End()
	d.Stop(t)
}

// TestApplyMany: NICs, networks and rules through the command and a real daemon; the long form has
// a thousand NICs, a hundred networks and ten thousand rules.
func TestApplyMany(t *testing.T) {
	networks := 100
	if os.Getenv("VRDMA_TEST_ALL") == "" {
		networks = 10
	}
	var b strings.Builder
	b.WriteString(manyNICs(networks, 10))
	for n := range networks {
		for p := range 10 {
			fmt.Fprintf(&b, "apiVersion: vrdma.io/v1\nkind: Policy\nmetadata: {name: p%d-%d, tenant: t%d}\nspec: {nics: {network: n%d}, deny: [", n%10, p, n/10, n%10)
			for r := range 10 {
				fmt.Fprintf(&b, "{direction: in, peer: {nic: n%d-%d}, service: {space: tcp, ports: [%d]}},", n%10, r, 7000+10*p+r)
			}
			b.WriteString("]}\n---\n")
		}
	}
	d := startDaemon(t, filepath.Join(harness.Directory(t, nil), "store"))
	file := writeFile(t, "many.yaml", b.String())
	for _, what := range []string{"created", "unchanged"} {
		begin := time.Now()
		wantOut(t, d, 0, "policy/t0/p9-9 "+what, "apply", "-f", file)
		t.Logf("%d NICs, %d networks, %d rules %s in %v", 10*networks, networks, 100*networks, what, time.Since(begin))
	}
	wantOut(t, d, 0, "ready", "get", "nic", "t0/n9-9")
	d.Stop(t)
}
