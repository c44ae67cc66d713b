package guest

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/test/workload"
)

// static builds a Go program of examples without cgo, for this machine and the guest.
func (l *lab) static(t *testing.T, name string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "go"+name)
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", file, "./examples/"+name)
	build.Dir, build.Env = harness.Root(), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	l.guest.Install(t, file)
	return file
}

// goVerbs runs a static Go program on the kernel's rxe, inside of the guest, against the same program on
// a vrdma daemon's device; each is the server once. Then Go and C programs, each on either device.
func (l *lab) goVerbs(t *testing.T) {
	d := l.daemon(t)
	ping := l.static(t, "ping")
	p := l.pair(t, d, false)
	const port = "7500"
	server := l.guest.Launch(t, ping, "-kernel", "-s", "-l", "0.0.0.0:"+port)
	l.guest.AwaitManaged(t, server, 7500)
	client := d.Launch(t, ping, "-n", "200", p.guest.IP+":"+port)
	if !client.Ended(limit) || !strings.Contains(client.Output(), "200 pings of 64 bytes") {
		t.Errorf("the client on vrdma: %s\n%s\nthe server on rxe: %s", client.Fate(), client.Output(), server.Output())
	}
	if !server.Ended(limit) || server.Code() != 0 {
		t.Errorf("the server on rxe: %s\n%s", server.Fate(), server.Output())
	}
	here := d.Launch(t, ping, "-s", "-l", p.ours.IP+":"+port)
	d.AwaitManaged(t, here, 7500)
	out := l.guest.Run(t, limit, ping, "-kernel", "-n", "200", "-size", "5000", p.ours.IP+":"+port)
	if !strings.Contains(out, "200 pings of 5000 bytes") {
		t.Errorf("the client on rxe says\n%s", out)
	}
	here.OK(t, limit)

	// With librdmacm's rping, in every combination of languages and devices.
	own := l.static(t, "rping")
	const (
		cServer, cClient = "rping -s -v -V -a ADDR -p PORT", "rping -c -v -V -a ADDR -p PORT -C 10"
		at               = " ADDR:PORT"
	)
	for _, c := range []struct {
		name, server, client string
		at, from             workload.Host
	}{
		{"C server on rxe", cServer, own + at, p.guest, p.ours},
		{"C client on rxe", own + " -s" + at, cClient, p.ours, p.guest},
		{"C server on vrdma", cServer, own + " -kernel" + at, p.ours, p.guest},
		{"C client on vrdma", own + " -kernel -s" + at, cClient, p.guest, p.ours},
	} {
		w := workload.Managed{Name: c.name, Port: 7174, Server: c.server, Client: c.client, Must: "ping data: rdma-ping"}
		t.Run(c.name, func(t *testing.T) { p.persist(t, w, c.at, c.from) })
	}
}

// store runs the lab's key-value store on the kernel's rxe with clients on vrdma, and the other way round. Some updates
// and reads use messages, others RDMA READs; clients check every value.
func (l *lab) store(t *testing.T) {
	d := l.daemon(t)
	kv := l.static(t, "kv")
	p := l.pair(t, d, false)
	const port = "7501"
	work := []string{"-keys", "16", "-ways", "rpc,read", "-mixes", "A,C", "-values", "8,4096", "-clients", "2", "-writers", "1",
		"-operations", harness.Pick("100", "2000"), "-json"}
	check := func(who, out string) {
		t.Helper()
		var rows []struct{ Way, Mix string }
		if err := json.Unmarshal([]byte(out), &rows); err != nil || len(rows) != 8 {
			t.Errorf("%s: %d rows, want 8: %v\n%s", who, len(rows), err, out)
		}
	}
	server := l.guest.Launch(t, kv, "serve", "-kernel", "-listen", p.guest.IP+":"+port, "-keys", "16")
	l.guest.AwaitManaged(t, server, 7501)
	client := d.Launch(t, append([]string{kv, "-server", p.guest.IP + ":" + port}, work...)...)
	client.OK(t, limit)
	check("clients on vrdma, the store on rxe", client.Stdout())
	server.End()

	here := d.Launch(t, kv, "serve", "-listen", p.ours.IP+":"+port, "-keys", "16")
	d.AwaitManaged(t, here, 7501)
	check("clients on rxe, the store on vrdma", l.guest.Run(t, limit, append([]string{kv, "-kernel", "-server", p.ours.IP + ":" + port}, work...)...))
	here.End()
}
