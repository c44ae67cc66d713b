package control

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/tenancy/store"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

func TestMain(m *testing.M) {
	askTime, readTime, tidyTime = time.Hour, time.Hour, time.Hour // tests tidy themselves
	os.Exit(m.Run())
}

// A fakeProvisioner remembers what it was told.
type fakeProvisioner struct {
	mu         sync.Mutex
	in         map[tenant.Key]*tenant.NIC
	used       map[tenant.Key][]string
	broken     map[tenant.Key]error // cannot be put in
	stuck      map[tenant.Key]error // cannot be pulled out
	inserted   int
	enforced   *tenant.World
	overlayMap *overlay.Map
	charts     int
	panics     bool
	lawless    bool // rules cannot be enforced
}

func newFakeProvisioner() *fakeProvisioner {
	return &fakeProvisioner{in: map[tenant.Key]*tenant.NIC{}, used: map[tenant.Key][]string{}, broken: map[tenant.Key]error{}, stuck: map[tenant.Key]error{}}
}

func (r *fakeProvisioner) Put(t *tenant.Tenant, n *tenant.Network, c *tenant.NIC) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t == nil || n == nil || c == nil {
		return errors.New("a NIC without tenant or network")
	}
	if r.panics {
		panic("the provisioner fell over")
	}
	if err := r.broken[c.Key()]; err != nil {
		return err
	}
	r.inserted++
	r.in[c.Key()] = c
	return nil
}

func (r *fakeProvisioner) Remove(keys []tenant.Key, force bool) map[tenant.Key]error {
	r.mu.Lock()
	defer r.mu.Unlock()
	failures := make(map[tenant.Key]error)
	for _, k := range keys {
		if by := r.used[k]; len(by) > 0 && !force {
			failures[k] = &tenant.InUse{NIC: k, By: by}
		}
	}
	if len(failures) > 0 {
		return failures
	}
	for _, k := range keys {
		if err := r.stuck[k]; err != nil {
			failures[k] = err
			continue
		}
		delete(r.in, k)
		delete(r.used, k) // its programs are disconnected
	}
	return failures
}

func (r *fakeProvisioner) Enforce(w *tenant.World) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lawless {
		panic("no rules")
	}
	r.enforced = w
}

func (r *fakeProvisioner) Connect(m *overlay.Map) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.overlayMap = m
	r.charts++
	return nil
}

func (r *fakeProvisioner) Users(k tenant.Key) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.used[k]
}

func (r *fakeProvisioner) Socket(k tenant.Key) string { return "/sockets/" + k.Path() }

// set changes its behaviour.
func (r *fakeProvisioner) set(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

// has returns its NICs by name.
func (r *fakeProvisioner) has() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for k := range r.in {
		out = append(out, k.Path())
	}
	slices.Sort(out)
	return out
}

// puts returns how many NICs were put so far; maps how many network maps were made.
func (r *fakeProvisioner) puts() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.inserted
}

func (r *fakeProvisioner) maps() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.charts
}

func nicKey(of, name string) tenant.Key {
	return tenant.Key{Kind: tenant.KindNIC, Tenant: of, Name: name}
}

// A host is a plane with a socket. The test sets the credentials of its callers.
type host struct {
	t           testing.TB
	plane       *Plane
	provisioner *fakeProvisioner
	store       store.Store
	budget      *budget.Ledger
	dir         string
	mu          sync.Mutex
	n           int
	work        sync.WaitGroup
}

func newHost(t testing.TB, s store.Store) *host {
	t.Helper()
	h := &host{t: t, provisioner: newFakeProvisioner(), store: s, budget: budget.New(budget.ThisMachine().Limits()), dir: t.TempDir()}
	h.open()
	t.Cleanup(func() {
		h.plane.Close()
		h.work.Wait()
	})
	return h
}

func (h *host) open() {
	h.t.Helper()
	var err error
	h.plane, err = Open(Config{Store: h.store, Provisioner: h.provisioner, Host: "here"})
	if err != nil {
		h.t.Fatal(err)
	}
}

// as returns a socket at which every caller is peer.
func (h *host) as(peer credentials.Peer, uid int) string {
	h.t.Helper()
	h.mu.Lock()
	h.n++
	path := filepath.Join(h.dir, fmt.Sprint(h.n))
	h.mu.Unlock()
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { l.Close() })
	h.work.Go(func() {
		for {
			u, err := l.AcceptUnix()
			if err != nil {
				return
			}
			h.work.Go(func() { h.converse(protocol.NewConn(u), peer, uid) })
		}
	})
	h.t.Cleanup(func() { l.Close() })
	return path
}

// converse greets as the server does.
func (h *host) converse(c *protocol.Conn, peer credentials.Peer, uid int) {
	defer c.Close()
	var hello [1024]byte
	if _, _, err := c.ReadMessage(hello[:]); err != nil {
		return
	}
	w := protocol.Welcome{Magic: protocol.Magic, Protocol: protocol.Version}
	c.WriteMessage(w.Append(nil))
	var req protocol.ControlRequest
	if c.ReceiveRequest(&req) != nil || c.SendJSON(protocol.ControlReply{}) != nil {
		return
	}
	who := &credentials.Caller{Pid: os.Getpid(), UID: uid, GID: 100000 + uid, Program: "test", Account: h.budget.User(uid)}
	defer who.Account.Drop()
	peer.Who = who
	h.plane.Serve(c, peer)
}

func (h *host) operator() string { return h.as(credentials.Peer{Operator: true, Resident: true}, 0) }

func (h *host) user(uid int) string { return h.as(credentials.Peer{Resident: true}, uid) }

// file is one file.
func file(text string) []File { return []File{{"test.yaml", text}} }

func example(t testing.TB) []File {
	t.Helper()
	text, err := os.ReadFile("../../../examples/two-tenants.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return []File{{"two-tenants.yaml", string(text)}}
}

func mustApply(t testing.TB, socket string, files []File) *Reply {
	t.Helper()
	r, err := Apply(socket, files, false)
	if err != nil {
		t.Fatalf("apply: %v", err)
	}
	return r
}

// names are the keys of items.
func names(items []Item) (out []string) {
	for _, it := range items {
		text := it.Key.String()
		if it.Deleted {
			text += " deleted"
		}
		out = append(out, text)
	}
	return out
}

// worldText is everything that a world says.
func worldText(t testing.TB, w *tenant.World) string {
	t.Helper()
	out := ""
	for _, o := range w.Objects("") {
		text, err := tenant.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		out += string(text) + "\n"
	}
	return out
}

// eventually waits for cond, a minute at most.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}
