// Package tenants tests a daemon with many NICs as programs see it: the stock tools on NICs of
// two tenants whose addresses are the same, who may open what, and NICs that come and go under
// running programs. The daemon runs in the test itself, so that NICs are put into it
// directly; programs come in by `vrdma run --nic`.
package tenants

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/client/server"
	"vrdma.dev/vrdma/internal/device/engine"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/registry"
	"vrdma.dev/vrdma/internal/events"
	"vrdma.dev/vrdma/internal/net/routes"
	"vrdma.dev/vrdma/internal/platform/launch"
	"vrdma.dev/vrdma/internal/tenancy/provision"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
	"vrdma.dev/vrdma/internal/testkit/locked"
	"vrdma.dev/vrdma/test/harness"
)

const minute = time.Minute

func TestMain(m *testing.M) { harness.Main(m) }

// A daemon is built as in cmd/vrdma, without the command line and without a default NIC.
type daemon struct {
	place       launch.Place
	engine      *engine.Engine
	nics        *registry.Table
	provisioner *provision.Provisioner
	server      *server.Server
	ledger      *budget.Ledger
	world       *tenant.World
	log         locked.Buffer

	mu      sync.Mutex
	refused []string // guarded by mu; the reason for each caller that was not admitted
	quotas  []string // guarded by mu; the tenants that reached a quota
}

// start starts a daemon that lives as long as the test, with the NICs of a file.
func start(t testing.TB, file string) *daemon {
	t.Helper()
	return startAt(t, harness.Directory(t, nil), file, 0o600, 0o700)
}

// startAt is start in a directory, with modes of the socket and of directories.
func startAt(t testing.TB, dir, file string, mode, dirMode fs.FileMode) *daemon {
	t.Helper()
	harness.Build(t)
	place, err := launch.At(filepath.Join(dir, "vrdma.sock"))
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{place: place, nics: registry.NewTable(), ledger: budget.New(budget.ThisMachine().Limits()), world: &tenant.World{}}
	log := slog.New(slog.NewTextHandler(&d.log, nil))
	for _, l := range []struct{ from, to string }{{harness.Library(), place.Library()}, {harness.SocketsLibrary(), place.Sockets()}} {
		if err := os.MkdirAll(place.Dir(), dirMode); err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(l.from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(l.to, content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	d.engine, err = engine.New(engine.Options{Resolver: d.nics, Loops: harness.Loops(), Log: log, Evict: func(s *nic.Session) { d.server.Evict(s) }})
	if err != nil {
		t.Fatal(err)
	}
	d.provisioner = provision.New(provision.Config{
		Engine: d.engine, NICs: d.nics, Budget: d.ledger, Log: log, Place: place, Mode: mode, DirMode: dirMode,
		Owner: os.Geteuid(), Seed: []byte("test"), HostRoutes: routes.None{},
	})
	d.server, err = server.Listen(server.Config{
		Listeners: []server.Listener{{Socket: place.Socket, DirMode: dirMode, SocketMode: mode}}, Engine: d.engine, Log: log, Version: "test", Budget: d.ledger,
		Events: d,
	})
	if err != nil {
		t.Fatal(err)
	}
	d.engine.Start()
	d.provisioner.Open(d.server)
	served := make(chan error, 1)
	go func() { served <- d.server.Serve() }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), minute)
		defer cancel()
		if err := d.server.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
		d.provisioner.Close()
		d.engine.Stop()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		if t.Failed() {
			t.Logf("the daemon's log, last part:\n%s", harness.Tail(d.log.String(), 40))
		}
	})
	d.apply(t, file)
	return d
}

// Record implements events.Sink: it notes limits that tenants reach and callers that are refused.
func (d *daemon) Record(e events.Event) {
	switch e.Verb {
	case events.Quota:
		d.note(&d.quotas, fmt.Sprintf("%s: %s", e.Object.Name, e.Reason))
	case events.Refused:
		d.note(&d.refused, fmt.Sprintf("%s: pid %d: %s", e.Object.Path(), e.By.Pid, strings.TrimPrefix(e.Reason, "open: ")))
	}
}

func (d *daemon) note(list *[]string, text string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	*list = append(*list, text)
}

func (d *daemon) noted(list *[]string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(*list, "\n")
}

// apply adds the objects of a file to the world, and its NICs to the host.
func (d *daemon) apply(t testing.TB, file string) {
	t.Helper()
	objects, err := tenant.Parse("test.yaml", []byte(file))
	if err != nil {
		t.Fatal(err)
	}
	next, effects, err := d.world.Next(tenant.Change{Put: objects}, rand.New(rand.NewPCG(1, 2)))
	if err != nil {
		t.Fatal(err)
	}
	d.world = next
	d.provisioner.Enforce(next)
	for _, e := range effects {
		if c, ok := e.New.(*tenant.NIC); ok && e.Changed() {
			if err := d.provisioner.Put(next.TenantOf(c), next.NetworkOf(c), c); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func key(name string) tenant.Key {
	of, name, _ := strings.Cut(name, "/")
	return tenant.Key{Kind: tenant.KindNIC, Tenant: of, Name: name}
}

// remove removes a NIC.
func (d *daemon) remove(name string, force bool) error {
	return d.provisioner.Remove([]tenant.Key{key(name)}, force)[key(name)]
}

// A port is a NIC where programs run. It implements harness.Machine.
type port struct {
	d    *daemon
	name string
}

func (d *daemon) at(name string) port { return port{d, name} }

// command runs argv on the NIC.
func (p port) command(argv ...string) *exec.Cmd {
	cmd := exec.Command(harness.Binary(), append([]string{"run", "--socket", p.d.place.Socket, "--nic", p.name, "--"}, argv...)...)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "VRDMA_") && !strings.HasPrefix(v, "LD_PRELOAD=") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	return cmd
}

func (p port) launch(t testing.TB, argv ...string) *harness.Process {
	t.Helper()
	program := harness.Spawn(t, p.command(argv...))
	program.Name = p.name + ": " + strings.Join(argv, " ")
	return program
}

// Program implements harness.Machine.
func (p port) Program(t testing.TB, argv ...string) harness.Program { return p.launch(t, argv...) }

// Await implements harness.Machine.
func (p port) Await(t testing.TB, program harness.Program, tcp int) {
	t.Helper()
	harness.Listening(t, program.(*harness.Process), tcp, minute)
}

// run runs argv and requires success.
func (p port) run(t testing.TB, argv ...string) string {
	t.Helper()
	return p.launch(t, argv...).OK(t, minute)
}

// status asks at the NIC's own listener.
func (p port) status(t testing.TB) *protocol.Status {
	t.Helper()
	s, err := protocol.QueryStatus(p.d.provisioner.Socket(key(p.name)))
	if err != nil {
		t.Fatalf("status of %s: %v", p.name, err)
	}
	return s
}

// nobody makes a command run as an unprivileged user.
func nobody(cmd *exec.Cmd) *exec.Cmd {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: harness.Nobody()}
	return cmd
}

// example is the file that every user reads first.
func example(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(harness.Root(), "examples", "two-tenants.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
