package rdmacm

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"vrdma.dev/vrdma/internal/abi"
)

func TestPorts(t *testing.T) {
	f := newFabric(t)
	p := f.program()
	bind := func(ps uint16, at string, reuse bool) error {
		id := p.id(1, ps)
		if reuse {
			p.must(id.SetOption(abi.CMOptionIDReuseAddr, []byte{1, 0, 0, 0}))
		}
		return id.Bind(addr(at))
	}
	for _, c := range []struct {
		name  string
		ps    uint16
		at    string
		reuse bool
		want  error
	}{
		{"first", abi.PSTCP, "10.0.0.1:7000", false, nil},
		{"the same", abi.PSTCP, "10.0.0.1:7000", false, syscall.EADDRINUSE},
		{"another address", abi.PSTCP, "127.0.0.1:7000", false, nil},
		{"another port", abi.PSTCP, "10.0.0.1:7001", false, nil},
		{"another space", abi.PSUDP, "10.0.0.1:7000", false, nil},
		{"a wildcard beside an address", abi.PSTCP, "0.0.0.0:7000", false, syscall.EADDRNOTAVAIL},
		{"one side wants to share", abi.PSTCP, "10.0.0.1:7000", true, syscall.EADDRINUSE},
		{"shared", abi.PSTCP, "10.0.0.1:7002", true, nil},
		{"shared twice", abi.PSTCP, "10.0.0.1:7002", true, nil},
		{"not ours", abi.PSTCP, "10.9.9.9:7000", false, syscall.ENODEV},
		{"IPv6", abi.PSTCP, "[fd00::1]:7000", false, nil},
	} {
		if err := bind(c.ps, c.at, c.reuse); !errors.Is(err, c.want) && err != c.want {
			t.Errorf("%s: bind to %s: %v, want %v", c.name, c.at, err, c.want)
		}
	}
	id := p.id(1, abi.PSTCP)
	p.must(id.Bind(addr("10.0.0.1:0")))
	if n := id.Query().Src.Port(); n < firstEphemeral || n > lastEphemeral {
		t.Errorf("any port: %d", n)
	}
	name := id.Name
	id.Destroy()
	if _, err := p.ch.ID(name); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("a destroyed ID: %v, want ENOENT", err)
	}
}

func TestWildcards(t *testing.T) {
	f := newFabric(t)
	server, client := f.program(), f.program()
	any6 := server.listener(100, abi.PSTCP, "[::]:7000", 0)
	_ = any6
	id := client.id(200, abi.PSTCP)
	client.route(id, "10.0.0.1:7000")
	client.must(id.Connect(param(1, ""), ECE{}))
	server.next(abi.CMEventConnectRequest) // IPv4 at a listener of both

	id = client.id(201, abi.PSTCP)
	client.route(id, "[fd00::1]:7000")
	client.must(id.Connect(param(2, ""), ECE{}))
	server.next(abi.CMEventConnectRequest)
}

func TestStates(t *testing.T) {
	f := newFabric(t)
	p := f.program()
	id := p.id(1, abi.PSTCP)
	for name, err := range map[string]error{
		"route without address": id.ResolveRoute(),
		"connect unrouted":      id.Connect(param(1, ""), ECE{}),
		"accept nothing":        id.Accept(1, param(1, ""), ECE{}),
		"reject nothing":        id.Reject(0, nil),
		"disconnect nothing":    id.Disconnect(),
		"notify nothing":        id.Communicated(eventCommEst),
	} {
		if !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v, want EINVAL", name, err)
		}
	}
	if _, err := id.QPAttr(abi.QPStateInit); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("attributes without a device: %v, want EINVAL", err)
	}
	if _, err := p.ch.Create(1, 0x999, 0); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("an unknown port space: %v, want EINVAL", err)
	}
	p.route(id, "10.0.0.1:7000")
	if err := id.Connect(param(1, string(make([]byte, 57))), ECE{}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("57 bytes of private data: %v, want EINVAL", err)
	}
}

func TestNoRoute(t *testing.T) {
	f := newFabric(t)
	p := f.program()
	id := p.id(1, abi.PSTCP)
	if _, _, err := id.BeginResolve(netip.AddrPort{}, addr("10.0.0.9:7000")); err != nil {
		t.Fatal(err)
	}
	id.EndResolve(netip.MustParseAddr("192.0.2.1"), 0) // from an address that is not the device's
	if e := p.next(abi.CMEventAddrError); int32(e.Status) != -int32(syscall.ENODEV) {
		t.Errorf("status %d, want -ENODEV", int32(e.Status))
	}
	p.route(id, "10.0.0.1:7000") // it may try again
}

func TestOptions(t *testing.T) {
	f := newFabric(t)
	p := f.program()
	id := p.id(1, abi.PSTCP)
	for _, c := range []struct {
		name  uint32
		value []byte
		want  error
	}{
		{abi.CMOptionIDTOS, []byte{8}, nil},
		{abi.CMOptionIDTOS, []byte{8, 0}, syscall.EINVAL},
		{abi.CMOptionIDReuseAddr, []byte{1}, syscall.EINVAL},
		{abi.CMOptionIDAckTimeout, []byte{20}, nil},
		{abi.CMOptionIDAckTimeout, []byte{20, 0}, syscall.EINVAL},
		{abi.CMOptionIDAFOnly, []byte{1, 0, 0, 0}, nil},
		{99, nil, syscall.ENOSYS},
	} {
		if err := id.SetOption(c.name, c.value); err != c.want && !errors.Is(err, c.want) {
			t.Errorf("option %d = %v: %v, want %v", c.name, c.value, err, c.want)
		}
	}
	p.route(id, "10.0.0.1:7000")
	if q := id.Query(); q.TOS != 8 || q.Life != 19 {
		t.Errorf("TOS %d, packet life %d, want 8 and 19", q.TOS, q.Life)
	}
}
