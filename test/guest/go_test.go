package guest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"vrdma/test/harness"
)

// goVerbs runs a static Go program on the kernel's rxe, inside of the guest, against the same program on
// a vrdma daemon's device; each is the server once.
func (l *lab) goVerbs(t *testing.T) {
	d := l.daemon(t)
	ping := filepath.Join(t.TempDir(), "goping")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", ping, "./examples/ping")
	build.Dir, build.Env = harness.Root(), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	l.guest.Install(t, ping)
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
}
