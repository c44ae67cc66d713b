package provision

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/client/server"
	"vrdma.dev/vrdma/internal/device/engine"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/registry"
	"vrdma.dev/vrdma/internal/net/routes"
	"vrdma.dev/vrdma/internal/platform/launch"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// fakeListeners opens no sockets. A NIC in used is used.
type fakeListeners struct {
	open map[string]server.Listener
	used map[string]bool
	fail error
	// stuck are NICs that a user does not release.
	stuck map[string]error
}

func (f *fakeListeners) OpenListener(d server.Listener) error {
	if f.fail != nil {
		return f.fail
	}
	d.NIC.PlaceTree(d.Socket+".d/sys", d.DirMode, nil)
	f.open[d.NIC.Name] = d
	return os.WriteFile(d.Socket, nil, d.SocketMode)
}

func (f *fakeListeners) CloseListeners(_ context.Context, nics []*registry.NIC, force bool) map[*registry.NIC]error {
	errs := make(map[*registry.NIC]error)
	for _, n := range nics {
		if f.used[n.Name] && !force {
			errs[n] = &server.InUse{NIC: n.Name, By: f.Users(n)}
		}
	}
	if len(errs) > 0 {
		return errs
	}
	for _, n := range nics {
		if err := f.stuck[n.Name]; err != nil {
			errs[n] = err
			continue
		}
		delete(f.open, n.Name)
		n.Tree.Leave()
	}
	return errs
}

func (f *fakeListeners) Users(n *registry.NIC) []server.User {
	if f.used[n.Name] {
		return []server.User{{Program: "prog", Pid: 17, UID: 1000, Since: time.Now()}}
	}
	return nil
}

func (f *fakeListeners) Recheck(*registry.NIC) {}

func newTest(t *testing.T) (*Provisioner, *fakeListeners) {
	t.Helper()
	place, err := launch.At(filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(place.Dir(), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{place.Library(), place.Sockets()} {
		if err := os.WriteFile(path, []byte("library"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	nics := registry.NewTable()
	e, err := engine.New(engine.Options{Resolver: nics})
	if err != nil {
		t.Fatal(err)
	}
	e.Start()
	r := New(Config{
		Engine: e, NICs: nics, Budget: budget.New(budget.ThisMachine().Limits()), Place: place, Mode: 0o600, DirMode: 0o700,
		Seed: []byte("seed"), HostRoutes: routes.None{},
	})
	listeners := &fakeListeners{open: make(map[string]server.Listener), used: make(map[string]bool), stuck: make(map[string]error)}
	r.Open(listeners)
	t.Cleanup(func() { r.Close(); e.Stop() })
	return r, listeners
}

// objects are a tenant, a network and a NIC there.
func objects(of, name, address string) (*tenant.Tenant, *tenant.Network, *tenant.NIC) {
	t := &tenant.Tenant{Metadata: tenant.Metadata{Name: of}}
	n := &tenant.Network{Metadata: tenant.Metadata{Name: "net", Tenant: of}, Spec: tenant.NetworkSpec{Subnets: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}}}
	c := &tenant.NIC{Metadata: tenant.Metadata{Name: name, Tenant: of}, Spec: tenant.NICSpec{Network: "net", Addresses: []netip.Addr{netip.MustParseAddr(address)}}}
	return t, n, c
}

// remove pulls one NIC out.
func remove(r *Provisioner, c *tenant.NIC, force bool) error {
	return r.Remove([]tenant.Key{c.Key()}, force)[c.Key()]
}

func put(t *testing.T, r *Provisioner, of, name, address string) *tenant.NIC {
	t.Helper()
	a, b, c := objects(of, name, address)
	if err := r.Put(a, b, c); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestNetworks: two networks have the same addresses, and each NIC reaches its own.
func TestNetworks(t *testing.T) {
	r, _ := newTest(t)
	at := netip.MustParseAddr
	for _, of := range []string{"red", "blue"} {
		put(t, r, of, "a", "10.1.0.1")
		put(t, r, of, "b", "10.1.0.2")
	}
	put(t, r, "red", "c", "10.1.0.3")
	red, blue := r.NIC(tenant.Key{Kind: tenant.KindNIC, Tenant: "red", Name: "a"}), r.NIC(tenant.Key{Kind: tenant.KindNIC, Tenant: "blue", Name: "a"})
	if red.Network != "red/net" || red.Name != "red/a" || red.Device.NodeGUID == blue.Device.NodeGUID || red.Device.Name != "rxe0" {
		t.Errorf("red/a is %q in %q, GUID %x; blue's is %x", red.Name, red.Network, red.Device.NodeGUID, blue.Device.NodeGUID)
	}
	for _, test := range []struct {
		from *registry.NIC
		to   string
		want error
	}{
		{red, "10.1.0.2", nil}, {red, "10.1.0.3", nil}, {red, "10.1.0.4", syscall.ENETUNREACH}, {red, "192.0.2.1", syscall.ENETUNREACH},
		{blue, "10.1.0.2", nil}, {blue, "10.1.0.3", syscall.ENETUNREACH}, {blue, "::1", syscall.ENETUNREACH},
	} {
		from, err := test.from.Routes.From(netip.IPv4Unspecified(), at(test.to))
		if !errors.Is(err, test.want) || err == nil && from != at("10.1.0.1") {
			t.Errorf("%s to %s: from %v, %v, want %v", test.from.Name, test.to, from, err, test.want)
		}
		way := r.cfg.NICs.Resolve(test.from.Device, at(test.to).As16())
		if way.Local() != (test.want == nil) || way.Remote() {
			t.Errorf("%s to %s: way %+v", test.from.Name, test.to, way)
		}
	}
	if err := r.Put(objects("red", "d", "10.1.0.1")); err == nil || !strings.Contains(err.Error(), "red/a") {
		t.Errorf("an address twice: %v", err)
	}
}

// TestRemoveAndPut: nothing is left of a removed NIC, nor of one that could not be put.
func TestRemoveAndPut(t *testing.T) {
	r, listeners := newTest(t)
	c := put(t, r, "red", "a", "10.1.0.1")
	dir := filepath.Join(r.cfg.Place.NICs(), "red", "a", "nic")
	for path, mode := range map[string]os.FileMode{"": 0o755, "..": 0o700, "../..": 0o711, "../../..": 0o711} {
		if info, err := os.Stat(filepath.Join(dir, path)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v %v, want mode %o", filepath.Join(dir, path), info, err, mode)
		}
	}
	lib, err := os.Stat(filepath.Join(dir, "vrdma.sock.d", "libvrdma.so"))
	if first, _ := os.Stat(r.cfg.Place.Library()); err != nil || !os.SameFile(lib, first) {
		t.Errorf("the library is a file of its own: %v", err)
	}
	listeners.used["red/a"] = true
	err = remove(r, c, false)
	var used *tenant.InUse
	if !errors.As(err, &used) || used.NIC != c.Key() || len(used.By) != 1 || !strings.Contains(err.Error(), "prog (pid 17, uid 1000, for 0s)") {
		t.Errorf("in use: %v", err)
	}
	if got := r.Users(c.Key()); len(got) != 1 || r.Socket(c.Key()) == "" {
		t.Errorf("users %v at %q", got, r.Socket(c.Key()))
	}
	if err := remove(r, c, true); err != nil {
		t.Error(err)
	}
	empty := func(when string) {
		t.Helper()
		_, err := os.Stat(r.cfg.Place.NICs())
		for end := time.Now().Add(time.Minute); err == nil && time.Now().Before(end); _, err = os.Stat(r.cfg.Place.NICs()) {
			time.Sleep(time.Millisecond) // the files are removed in the background
		}
		if !errors.Is(err, os.ErrNotExist) || len(r.cfg.NICs.All()) != 0 || len(r.accounts.of) != 0 || r.Socket(c.Key()) != "" {
			t.Errorf("%s: directory %v, NICs %v, tenants %v", when, err, r.cfg.NICs.Names(), r.accounts.of)
		}
	}
	empty("removed")
	listeners.fail = errors.New("no socket")
	if err := r.Put(objects("red", "a", "10.1.0.1")); !errors.Is(err, listeners.fail) {
		t.Errorf("a listener that cannot be opened: %v", err)
	}
	empty("not put in")
	listeners.fail = nil
	put(t, r, "red", "a", "10.1.0.1")
	_, n, c := objects("red", "b", "10.1.0.2")
	n.Spec.Way = tenant.WayNamespace
	if err := r.Put(&tenant.Tenant{Metadata: tenant.Metadata{Name: "red"}}, n, c); err == nil || !strings.Contains(err.Error(), "the engine assigns addresses") {
		t.Errorf("way namespace with an address: %v", err)
	}
}

// TestHostAddresses: a NIC in the host's network has an address at which other hosts reach the host.
func TestHostAddresses(t *testing.T) {
	r, _ := newTest(t)
	r.hostAddresses.Store(&[]netip.Addr{netip.MustParseAddr("192.0.2.1")})
	for address, want := range map[string]string{"192.0.2.1": "", "192.0.2.2": "this daemon does not serve other hosts at 192.0.2.2"} {
		of, n, c := objects("red", "a", address)
		n.Spec.Way = tenant.WayHost
		if err := r.Put(of, n, c); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", address, err, want)
		}
	}
}

// TestRemoveMany: NICs are removed together, or all stay while one of them is in use. A NIC that is not released can be
// neither used nor put again until it is.
func TestRemoveMany(t *testing.T) {
	r, listeners := newTest(t)
	var keys []tenant.Key
	for _, name := range []string{"a", "b", "c"} {
		address := map[string]string{"a": "10.1.0.1", "b": "10.1.0.2", "c": "10.1.0.3"}[name]
		keys = append(keys, put(t, r, "red", name, address).Key())
	}
	// A program that names the socket's path has a file beside the socket.
	if err := os.WriteFile(r.Socket(keys[0])+".lease", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	listeners.used["red/b"] = true
	errs := r.Remove(keys, false)
	var used *tenant.InUse
	if len(errs) != 1 || !errors.As(errs[keys[1]], &used) || len(listeners.open) != 3 || len(r.Keys()) != 3 {
		t.Errorf("one is in use: %v; %d listeners are open, %d NICs in", errs, len(listeners.open), len(r.Keys()))
	}
	stuck := errors.New("stuck")
	listeners.stuck["red/c"] = stuck
	if errs := r.Remove(keys, true); len(errs) != 1 || !errors.Is(errs[keys[2]], stuck) || len(r.Keys()) != 1 {
		t.Errorf("one is stuck: %v, %v are in", errs, r.Keys())
	}
	if _, err := os.Stat(filepath.Join(r.cfg.Place.NICs(), "red", "a")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory of a NIC that is gone: %v", err)
	}
	if err := r.Put(objects("red", "c", "10.1.0.3")); !errors.Is(err, stuck) {
		t.Errorf("a NIC that somebody still has is put in again: %v", err)
	}
	delete(listeners.stuck, "red/c")
	put(t, r, "red", "c", "10.1.0.3")
	if len(listeners.open) != 1 || len(r.Keys()) != 1 || r.find(keys[2]).leaving {
		t.Errorf("put in again: listeners %v, %v are in", listeners.open, r.Keys())
	}
}

// TestDirectoriesStay: a container has a NIC's directory mounted and finds the next daemon there. The directories of
// undeclared NICs are removed.
func TestDirectoriesStay(t *testing.T) {
	r, _ := newTest(t)
	put(t, r, "red", "a", "10.1.0.1")
	put(t, r, "blue", "b", "10.1.0.1")
	long := strings.Repeat("long", 15)
	put(t, r, "green", long, "10.1.0.1")
	dir := func(of, name string) string {
		p, err := r.cfg.Place.NIC(of, name)
		if err != nil {
			t.Fatal(err)
		}
		return filepath.Dir(p.Socket)
	}
	before, err := os.Stat(dir("red", "a"))
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	after, err := os.Stat(dir("red", "a"))
	if err != nil || !os.SameFile(before, after) {
		t.Errorf("the directory is another one: %v", err)
	}
	if entries, err := os.ReadDir(dir("red", "a")); err != nil || len(entries) != 0 {
		t.Errorf("there is something in it: %v, %v", entries, err)
	}
	delete(r.nics, tenant.Key{Kind: tenant.KindNIC, Tenant: "blue", Name: "b"})
	r.Sweep()
	for name, want := range map[string]bool{dir("red", "a"): true, dir("blue", "b"): false, filepath.Dir(dir("blue", "b")): false, dir("green", long): true} {
		if _, err := os.Stat(name); (err == nil) != want {
			t.Errorf("%s: %v, want it there: %v", name, err, want)
		}
	}
}

func TestMTU(t *testing.T) {
	for _, test := range []struct {
		said, underlay int
		way            tenant.Way
		want           uint8
	}{
		{0, 0, "", nic.LargestMTU}, {0, 1500, "", 3}, {0, 9000, "", 5}, {0, 1500, tenant.WayHost, 3}, {1200, 9000, "", 3}, {600, 0, "", 1}, {9000, 1500, "", 5},
	} {
		n := &tenant.Network{Spec: tenant.NetworkSpec{MTU: test.said, Way: test.way}}
		r := New(Config{Underlay: test.underlay, OverlayMTU: test.underlay, OverlayHead: 70})
		if got := r.mtu(n); got != test.want {
			t.Errorf("%+v: %d", test, got)
		}
	}
}

// TestLimits: a declared NIC can have lower limits than others, and the default one higher ones, too.
func TestLimits(t *testing.T) {
	said := tenant.Limits{QPs: 3, CQs: 60000, Memory: 4096}
	want := nic.DefaultLimits
	want.QPs, want.Memory = 3, 4096
	if got := lower(nic.DefaultLimits, said); got != want {
		t.Errorf("declared: %+v, want %+v", got, want)
	}
	want.CQs = 60000
	if got := SetLimits(nic.DefaultLimits, said); got != want {
		t.Errorf("default: %+v, want %+v", got, want)
	}
	// Every limit that can be declared is set.
	said = tenant.Limits{PDs: 1, CQs: 2, QPs: 3, MRs: 4, MWs: 5, SRQs: 6, AHs: 7, Channels: 8, Memory: 9}
	want.PDs, want.CQs, want.QPs, want.MRs, want.MWs, want.SRQs, want.AHs, want.Channels, want.Memory = 1, 2, 3, 4, 5, 6, 7, 8, 9
	if set, low := SetLimits(nic.DefaultLimits, said), lower(nic.DefaultLimits, said); set != want || low != want {
		t.Errorf("all: %+v and %+v, want %+v", set, low, want)
	}
}

// TestGate: only users that may open a NIC can enter the directory around the NIC's own.
func TestGate(t *testing.T) {
	r, _ := newTest(t)
	c := put(t, r, "red", "a", "10.1.0.1")
	s := r.find(c.Key())
	for _, test := range []struct {
		who  tenant.Who
		mode os.FileMode
		acl  string // of acl(5), in the kernel's form
	}{
		{tenant.Who{UIDs: []int{7, 5, 7}, GIDs: []int{9}}, 0o710,
			"\x02\x00\x00\x00" + "\x01\x00\x07\x00\xff\xff\xff\xff" + "\x02\x00\x01\x00\x05\x00\x00\x00" + "\x02\x00\x01\x00\x07\x00\x00\x00" +
				"\x04\x00\x00\x00\xff\xff\xff\xff" + "\x08\x00\x01\x00\x09\x00\x00\x00" + "\x10\x00\x01\x00\xff\xff\xff\xff" + "\x20\x00\x00\x00\xff\xff\xff\xff"},
		{tenant.Who{Container: "/pod"}, 0o711, ""},
		{tenant.Who{GIDs: []int{9}, Container: "/pod"}, 0o710,
			"\x02\x00\x00\x00" + "\x01\x00\x07\x00\xff\xff\xff\xff" + "\x04\x00\x00\x00\xff\xff\xff\xff" + "\x08\x00\x01\x00\x09\x00\x00\x00" +
				"\x10\x00\x01\x00\xff\xff\xff\xff" + "\x20\x00\x00\x00\xff\xff\xff\xff"},
		{tenant.Who{}, 0o700, ""},
	} {
		s.open.set(test.who)
		if err := r.directories.setGate(s); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(s.place.Gate())
		if err != nil || info.Mode().Perm() != test.mode {
			t.Errorf("%+v: %v, %v, want mode %o", test.who, info, err, test.mode)
		}
		var b [256]byte
		n, err := unix.Getxattr(s.place.Gate(), aclAttribute, b[:])
		if n = max(n, 0); string(b[:n]) != test.acl || n == 0 && !errors.Is(err, unix.ENODATA) {
			t.Errorf("%+v: the list is %x (%v), want %x", test.who, b[:n], err, test.acl)
		}
	}
}
