package lab

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"vrdma.dev/vrdma/internal/instrument/rxeguest"
	"vrdma.dev/vrdma/test/harness"
)

// A console is a `vrdma lab console`.
type console struct {
	*harness.Process
	keys io.Writer
}

// login opens the console of a machine and waits for its prompt.
func login(t *testing.T, path, name string) console {
	t.Helper()
	cmd := exec.Command(harness.Binary(), "lab", "console", path)
	keys, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	c := console{harness.Spawn(t, cmd), keys}
	c.enter(t, "")
	c.Printed(t, name+":", minute)
	return c
}

// enter types a line.
func (c console) enter(t *testing.T, line string) {
	t.Helper()
	if _, err := io.WriteString(c.keys, line+"\n"); err != nil {
		t.Fatalf("%v\n%s", err, c.Output())
	}
}

var consoles = regexp.MustCompile(`(?m)^(server|client)  (\S+)  vrdma lab console (\S+)$`)

// TestLabVMs, in the long form: a student logs in to server and client of `vrdma lab vms` and runs rping and the lab's table between them, over the
// kernel's rxe. Ctrl-C ends both machines.
func TestLabVMs(t *testing.T) {
	if !harness.All() {
		t.Skip("two emulated machines boot: the long form has it")
	}
	harness.Need(t, append(rxeguest.Tools, "gcc", "make")...)
	harness.Build(t)
	vms := harness.Spawn(t, exec.Command(harness.Binary(), "lab", "vms", "--source", harness.Root()))
	vms.Printed(t, "client  10.77.0.2", 8*minute)
	paths := make(map[string]string)
	for _, m := range consoles.FindAllStringSubmatch(vms.Stdout(), -1) {
		paths[m[1]] = m[3]
	}
	if len(paths) != 2 {
		t.Fatalf("vrdma lab vms says\n%s", vms.Output())
	}
	server, client := login(t, paths["server"], "server"), login(t, paths["client"], "client")
	server.enter(t, "ibv_devices")
	server.Printed(t, "rxe0", minute)

	server.enter(t, "rping -s -C 5; echo rping ended with $?")
	client.enter(t, "until rping -c -a server -C 5 -v; do sleep 1; done; echo done $?.")
	client.Printed(t, "ping data: rdma-ping-4", 2*minute)
	client.Printed(t, "done 0.", minute)
	server.Printed(t, "rping ended with 0", minute)

	server.enter(t, "kv_server")
	client.enter(t, "until kv_client -s server -n 20; do sleep 1; done")
	client.Printed(t, "20 one-sided reads: ", 2*minute)
	server.Printed(t, "handled 42 messages", minute)

	if _, err := io.WriteString(client.keys, "\x1d"); err != nil {
		t.Fatal(err)
	}
	client.OK(t, minute)
	vms.Signal(syscall.SIGINT)
	vms.OK(t, minute)
	if !server.Ended(minute) {
		t.Error("the console outlives its machine")
	}
	if _, err := os.Stat(filepath.Dir(paths["server"])); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("files are left: %v", err)
	}
	if strings.Contains(vms.Output(), "has ended") {
		t.Errorf("Ctrl-C is no error:\n%s", vms.Output())
	}
}
