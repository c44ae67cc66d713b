package nic

import (
	"syscall"
	"testing"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// Access flags are accepted in the combinations that the kernel's ib_check_mr_access accepts.
func TestRegistrationFlags(t *testing.T) {
	for _, c := range []struct {
		name   string
		access uint32
		want   syscall.Errno
	}{
		{"none", 0, 0},
		{"everything that a program uses", abi.AccessLocalWrite | abi.AccessRemoteWrite | abi.AccessRemoteRead | abi.AccessRemoteAtomic | abi.AccessMWBind, 0},
		{"remote write without local write", abi.AccessRemoteWrite, syscall.EINVAL},
		{"atomics without local write", abi.AccessRemoteAtomic, syscall.EINVAL},
		{"remote read alone", abi.AccessRemoteRead, 0},
		{"an optional flag", abi.AccessRelaxedOrdering, 0},
		{"a flag that nobody knows", 1 << 12, syscall.EINVAL},
		{"on demand", abi.AccessOnDemand, syscall.EOPNOTSUPP},
	} {
		p := MRParams{Start: 4096, HcaVA: 4096, Length: 10, Access: c.access}
		_, err := p.Check()
		wants(t, c.name, err, c.want)
	}
	for name, p := range map[string]MRParams{
		"another offset in the page": {Start: 4097, HcaVA: 4098, Length: 10},
		"past the end of addresses":  {Start: 0, HcaVA: ^uint64(0) &^ 4095, Length: 8192},
	} {
		_, err := p.Check()
		wants(t, name, err, syscall.EINVAL)
	}
}

// A peer reaches a region with its key, inside its bounds, with its rights, through a
// queue pair of its protection domain: nothing else.
func TestRemoteRights(t *testing.T) {
	const base, size = 1 << 30, 8192
	r := newRig(t, DefaultLimits)
	o := r.objects()
	mr := o.mr(t, base, size, abi.AccessLocalWrite|abi.AccessRemoteWrite)
	q := o.s.QP(o.qp(t, abi.QPTypeRC).Handle)
	elsewhere := objects{s: o.s, pd: must(o.s.AllocPD())(t), cq: o.cq}
	stranger := o.s.QP(elsewhere.qp(t, abi.QPTypeRC).Handle)
	foreign := r.objects()
	other := foreign.s.QP(foreign.qp(t, abi.QPTypeRC).Handle)
	const write, read = ib.AccessRemoteWrite, ib.AccessRemoteRead
	for _, c := range []struct {
		name string
		q    *QP
		key  uint32
		va   uint64
		n    uint32
		need ib.Access
		want bool
	}{
		{"all of it", q, mr.RKey, base, size, write, true},
		{"its last byte", q, mr.RKey, base + size - 1, 1, write, true},
		{"nothing, at its end", q, mr.RKey, base + size, 0, write, true},
		{"one byte too many", q, mr.RKey, base, size + 1, write, false},
		{"a byte before it", q, mr.RKey, base - 1, 1, write, false},
		{"a byte behind it", q, mr.RKey, base + size, 1, write, false},
		{"around the end of addresses", q, mr.RKey, ^uint64(0), 2, write, false},
		{"a right that it does not give", q, mr.RKey, base, 1, read, false},
		{"another variant of the key", q, mr.RKey ^ 1, base, 1, write, false},
		{"a key of nothing", q, mr.RKey + 256, base, 1, write, false},
		{"another protection domain", stranger, mr.RKey, base, 1, write, false},
		{"another session", other, mr.RKey, base, 1, write, false},
	} {
		// Twice: the second time the key is remembered.
		for range 2 {
			if got := (*qpNIC)(c.q).CheckRemote(c.key, c.va, c.n, c.need) == transport.Success; got != c.want {
				t.Errorf("%s: allowed %v, want %v", c.name, got, c.want)
			}
		}
	}
	wants(t, "DeregMR", o.s.DeregMR(mr.Handle), 0)
	if (*qpNIC)(q).CheckRemote(mr.RKey, base, 1, write) == transport.Success {
		t.Error("a region that is gone is still reached")
	}
}

// Binding windows: C10-73 to C10-75, and what differs between the two types.
func TestWindows(t *testing.T) {
	const base, size = 1 << 30, 8192
	r := newRig(t, DefaultLimits)
	o := r.objects()
	mr := o.mr(t, base, size, abi.AccessLocalWrite|abi.AccessMWBind)
	plain := o.mr(t, base, size, abi.AccessLocalWrite)
	readonly := o.mr(t, base, size, abi.AccessMWBind)
	q := o.s.QP(o.qp(t, abi.QPTypeRC).Handle)
	q2 := o.s.QP(o.qp(t, abi.QPTypeRC).Handle)
	one, two := must(o.s.AllocMW(o.pd, abi.MWType1))(t), must(o.s.AllocMW(o.pd, abi.MWType2))(t)
	_, err := o.s.AllocMW(o.pd, 3)
	wants(t, "a window of type 3", err, syscall.EINVAL)
	bind := func(q *QP, w MWInfo, lkey uint32, addr, n uint64, access uint32, key uint8) transport.Status {
		return (*qpNIC)(q).bind(&transport.SendWQE{MWRKey: w.RKey, MRLKey: lkey, RemoteAddr: addr, MWLength: n, MWAccess: access, RKey: uint32(key)})
	}
	const rw = abi.AccessRemoteWrite | abi.AccessRemoteRead
	for name, st := range map[string]transport.Status{
		"a region that may not be bound":       bind(q, one, plain.LKey, base, 8, rw, 1),
		"write rights over a read-only region": bind(q, one, readonly.LKey, base, 8, abi.AccessRemoteWrite, 1),
		"beyond the region":                    bind(q, one, mr.LKey, base+size-4, 8, rw, 1),
		"a key of nothing":                     bind(q, one, mr.LKey+256, base, 8, rw, 1),
		"type 1, zero based":                   bind(q, one, mr.LKey, base, 8, rw|abi.AccessZeroBased, 1),
		"type 2 of no length":                  bind(q, two, mr.LKey, base, 0, rw, 1),
	} {
		if st != transport.MWBindErr {
			t.Errorf("%s: status %d, want a bind error", name, st)
		}
	}
	if st := bind(q, one, mr.LKey, base+16, 64, rw, 7); st != transport.Success {
		t.Fatalf("type 1: status %d", st)
	}
	key := one.RKey&^0xff | 7
	if (*qpNIC)(q).CheckRemote(key, base+16, 64, ib.AccessRemoteWrite) != transport.Success ||
		(*qpNIC)(q2).CheckRemote(key, base+16, 64, ib.AccessRemoteRead) != transport.Success {
		t.Error("a window of type 1 does not serve every queue pair of its domain")
	}
	if (*qpNIC)(q).CheckRemote(key, base+15, 1, ib.AccessRemoteRead) == transport.Success || (*qpNIC)(q).CheckRemote(key, base+16, 65, ib.AccessRemoteRead) == transport.Success {
		t.Error("a window reaches beyond itself")
	}
	if (*qpNIC)(q).CheckRemote(one.RKey&^0xff|8, base+16, 1, ib.AccessRemoteRead) == transport.Success {
		t.Error("a former key of a window still works")
	}
	wants(t, "a region with a window", o.s.DeregMR(mr.Handle), syscall.EINVAL)
	if (*qpNIC)(q).InvalidateRemote(key) == transport.Success {
		t.Error("a window of type 1 was invalidated")
	}
	// Length 0 unbinds type 1.
	if st := (*qpNIC)(q).bind(&transport.SendWQE{MWRKey: key, RKey: 9}); st != transport.Success {
		t.Errorf("unbind: status %d", st)
	}

	if st := bind(q, two, mr.LKey, base, 64, rw|abi.AccessZeroBased, 3); st != transport.Success {
		t.Fatalf("type 2: status %d", st)
	}
	key = two.RKey&^0xff | 3
	if (*qpNIC)(q).CheckRemote(key, 0, 64, ib.AccessRemoteRead) != transport.Success || (*qpNIC)(q).CheckRemote(key, base, 1, ib.AccessRemoteRead) == transport.Success {
		t.Error("a zero based window does not begin at 0")
	}
	if (*qpNIC)(q2).CheckRemote(key, 0, 1, ib.AccessRemoteRead) == transport.Success || (*qpNIC)(q2).InvalidateRemote(key) == transport.Success {
		t.Error("a window of type 2 serves another queue pair than the one that bound it")
	}
	if st := (*qpNIC)(q).bind(&transport.SendWQE{MWRKey: key, MRLKey: mr.LKey, RemoteAddr: base, MWLength: 8, RKey: 4}); st != transport.MWBindErr {
		t.Errorf("bind again: status %d, want a bind error", st)
	}
	if (*qpNIC)(q).InvalidateRemote(key) != transport.Success || (*qpNIC)(q).CheckRemote(key, 0, 1, ib.AccessRemoteRead) == transport.Success {
		t.Error("invalidating does not end a window of type 2")
	}
	// The end of the queue pair frees what it bound.
	if st := bind(q, MWInfo{RKey: key}, mr.LKey, base, 64, rw, 5); st != transport.Success {
		t.Fatalf("type 2 again: status %d", st)
	}
	_, err = o.s.DestroyQP(q.handle)
	wants(t, "DestroyQP", err, 0)
	wants(t, "the region, whose window went with the queue pair", o.s.DeregMR(mr.Handle), 0)
}
