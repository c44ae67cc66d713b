package netlink

import (
	"errors"
	"net/netip"
	"slices"
	"syscall"
	"testing"
)

// world is a device with objects.
type world struct {
	objects map[Kind][]Resource
}

func (w *world) Device() Device {
	return Device{Name: "rxe0", Ports: 1, CapFlags: 0x123456789, NodeGUID: 0xa, SystemGUID: 0xb, NodeType: 1, Protocol: "roce", UverbsDriverID: 14}
}

func (w *world) Port() Port {
	return Port{CapFlags: 1 << 16, State: 4, PhysState: 5, NetDev: "eth0", NetDevIndex: 2}
}

func (w *world) Chardev(name string) (Chardev, bool) {
	switch name {
	case "uverbs":
		return Chardev{Name: "uverbs0", ABI: 2, Major: 231, Minor: 1216, OfDevice: true}, true
	case "rdma_cm":
		return Chardev{Name: "rdma_cm", ABI: 4, Major: 10, Minor: 122}, true
	}
	return Chardev{}, false
}

func (w *world) Counters() []Counter { return []Counter{{"sent_pkts", 7}, {"rcvd_pkts", 8}} }

func (w *world) Counts() (n Counts) {
	for k, list := range w.objects {
		n[k] = uint64(len(list))
	}
	return n
}

// Resources gives three at a time.
func (w *world) Resources(k Kind, yield func([]Resource) bool) {
	for list := range slices.Chunk(w.objects[k], 3) {
		if !yield(list) {
			return
		}
	}
}

// ask makes a message with attributes.
func ask(cmd, flags uint16, attrs ...func(*message)) []byte {
	m := message{}
	r := request{seq: 42, pid: 99}
	m.begin(&r, clientNLDev<<10+cmd, flagRequest|flags)
	for _, f := range attrs {
		f(&m)
	}
	return m.end()
}

func num(kind uint16, v uint32) func(*message) { return func(m *message) { m.u32(kind, v) } }
func str(kind uint16, v string) func(*message) { return func(m *message) { m.text(kind, v) } }

// A reply is a parsed message of an answer.
type reply struct {
	request
	body []byte
}

// errno of an acknowledgement.
func (r *reply) errno() syscall.Errno { return syscall.Errno(-int32(order.Uint32(r.body))) }

// answers sends a request and parses the whole answer.
func answers(t testing.TB, w *world, datagram []byte) (out []reply) {
	t.Helper()
	err := Answer(datagram, w, func(b []byte) error {
		if len(b) > maxDatagram {
			t.Fatalf("an answer of %d bytes", len(b))
		}
		r, body, rest, ok := next(slices.Clone(b))
		if !ok || len(rest) != 0 {
			t.Fatalf("a datagram with %d bytes behind its message (%v)", len(rest), ok)
		}
		if r.kind >= typeMin {
			if err := r.parse(body); err != nil {
				t.Fatalf("an answer that cannot be parsed: %v", err)
			}
		}
		out = append(out, reply{r, body})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range out {
		if r.seq != 42 || r.pid != 99 {
			t.Fatalf("answer with sequence %d to port %d", r.seq, r.pid)
		}
	}
	return out
}

// nested returns the attributes inside attributes of a type.
func nested(t testing.TB, b []byte) (out []reply) {
	t.Helper()
	for len(b) >= attrHeader {
		n := int(order.Uint16(b))
		r := reply{body: b[attrHeader:n]}
		if err := r.parse(r.body); err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
		b = b[align(n):]
	}
	return out
}

func TestDevices(t *testing.T) {
	got := answers(t, &world{}, ask(cmdGet, flagDump|flagAck))
	if len(got) != 2 || got[1].kind != typeDone || got[0].flags != flagMulti {
		t.Fatalf("%d messages, want a device and the end: %+v", len(got), got)
	}
	d := got[0]
	name, _ := d.text(attrDevName)
	if ports, _ := d.u32(attrPortIndex); name != "rxe0" || ports != 1 || order.Uint64(d.attrs[attrNodeGUID]) != 0xa ||
		order.Uint64(d.attrs[attrCapFlags]) != 0x123456789 || d.attrs[attrNodeType][0] != 1 {
		t.Errorf("device %+v", d)
	}
	one := answers(t, &world{}, ask(cmdGet, flagAck, num(attrDevIndex, 0)))
	if len(one) != 2 || one[0].flags != 0 || one[1].kind != typeError || one[1].errno() != 0 {
		t.Errorf("%+v, want the device and an acknowledgement", one)
	}
}

func TestPort(t *testing.T) {
	got := answers(t, &world{}, ask(cmdPortGet, 0, num(attrDevIndex, 0), num(attrPortIndex, 1)))
	if len(got) != 1 || got[0].attrs[attrPortState][0] != 4 {
		t.Fatalf("%+v", got)
	}
	if dev, _ := got[0].text(attrNetDevName); dev != "eth0" {
		t.Errorf("interface %q", dev)
	}
}

func TestChardev(t *testing.T) {
	got := answers(t, &world{}, ask(cmdGetChardev, 0, num(attrDevIndex, 0), str(attrChardevType, "uverbs")))
	if len(got) != 1 {
		t.Fatalf("%+v", got)
	}
	// Parsed as libibverbs does it.
	v := order.Uint64(got[0].attrs[attrChardev])
	if major, minor := v&0xfff00>>8, v&0xff|v>>12&0xfff00; major != 231 || minor != 1216 {
		t.Errorf("device number %d:%d, want 231:1216", major, minor)
	}
	if id, _ := got[0].u32(attrDriverID); id != 14 {
		t.Errorf("driver %d", id)
	}
	got = answers(t, &world{}, ask(cmdGetChardev, 0, str(attrChardevType, "rdma_cm")))
	if name, _ := got[0].text(attrChardevName); name != "rdma_cm" || got[0].attrs[attrDriverID] != nil {
		t.Errorf("%+v", got[0])
	}
}

// A wrong request gets the kernel's errno, or a reason.
func TestErrors(t *testing.T) {
	for name, c := range map[string]struct {
		ask  []byte
		want syscall.Errno
	}{
		"another client's command": {func() []byte { b := ask(cmdGet, 0); order.PutUint16(b[4:], 2<<10+1); return b }(), syscall.EINVAL},
		"no such command":          {ask(999, 0), syscall.EINVAL},
		"no device":                {ask(cmdGet, 0), syscall.EINVAL},
		"no such device":           {ask(cmdGet, 0, num(attrDevIndex, 1)), syscall.EINVAL},
		"no such port":             {ask(cmdPortGet, 0, num(attrDevIndex, 0), num(attrPortIndex, 2)), syscall.EINVAL},
		"no port for a dump":       {ask(cmdResQPGet, flagDump, num(attrDevIndex, 0), num(attrPortIndex, 2)), syscall.EINVAL},
		"a short attribute":        {ask(cmdGet, 0, func(m *message) { m.u8(attrDevIndex, 0) }), syscall.EINVAL},
		"an attribute too long":    {ask(cmdGet, 0, func(m *message) { m.attr(attrDevIndex, 100) }), syscall.EINVAL},
		"no such chardev":          {ask(cmdGetChardev, 0, str(attrChardevType, "umad"), num(attrDevIndex, 0)), syscall.EOPNOTSUPP},
		"uverbs of no device":      {ask(cmdGetChardev, 0, str(attrChardevType, "uverbs")), syscall.EINVAL},
		"no such queue pair":       {ask(cmdResQPGet, 0, num(attrDevIndex, 0), num(attrLQPN, 5)), syscall.ENOENT},
		"a new name":               {ask(cmdSet, 0, num(attrDevIndex, 0), str(attrDevName, "x")), syscall.EOPNOTSUPP},
		"a new link":               {ask(cmdNewLink, 0), syscall.EOPNOTSUPP},
		"the link's end":           {ask(cmdDelLink, 0, num(attrDevIndex, 0)), syscall.EOPNOTSUPP},
		"another netns mode":       {ask(cmdSysSet, 0), syscall.EOPNOTSUPP},
		"a counter":                {ask(cmdStatSet, 0), syscall.EOPNOTSUPP},
	} {
		t.Run(name, func(t *testing.T) {
			got := answers(t, &world{}, c.ask)
			if len(got) != 1 || got[0].kind != typeError || got[0].errno() != c.want {
				t.Fatalf("%+v, want errno %d", got, c.want)
			}
			if words := got[0].flags&flagTLVs != 0; words && len(got[0].body) < 40 {
				t.Errorf("no words: %q", got[0].body)
			}
		})
	}
	// A message that is no request gets no answer.
	quiet := ask(cmdGet, flagDump)
	order.PutUint16(quiet[6:], 0)
	for _, b := range [][]byte{nil, {1, 2, 3}, quiet, append(make([]byte, 4), quiet[4:]...)} {
		if got := answers(t, &world{}, b); len(got) != 0 {
			t.Errorf("%x was answered: %+v", b, got)
		}
	}
}

// Two requests in one datagram are both answered.
func TestTwoRequests(t *testing.T) {
	got := answers(t, &world{}, append(ask(cmdSysGet, 0), ask(cmdGet, flagDump)...))
	if len(got) != 3 {
		t.Errorf("%d messages, want 3: %+v", len(got), got)
	}
}

func TestSummary(t *testing.T) {
	w := &world{map[Kind][]Resource{QP: make([]Resource, 5), SRQ: make([]Resource, 2)}}
	got := answers(t, w, ask(cmdResGet, 0, num(attrDevIndex, 0)))
	have := map[string]uint64{}
	for _, e := range nested(t, got[0].attrs[attrSummary]) {
		name, _ := e.text(attrSummaryName)
		have[name] = order.Uint64(e.attrs[attrSummaryCurrent])
	}
	if len(have) != int(kinds) || have["qp"] != 5 || have["srq"] != 2 || have["cm_id"] != 0 {
		t.Errorf("%v", have)
	}
}

// A long table takes many datagrams, without loss or duplicates.
func TestDump(t *testing.T) {
	commands := map[Kind]uint16{
		PD: cmdResPDGet, CQ: cmdResCQGet, QP: cmdResQPGet, CMID: cmdResCMIDGet, MR: cmdResMRGet, Ctx: cmdResCtxGet, SRQ: cmdResSRQGet,
	}
	for k := range kinds {
		for _, n := range []int{0, 1, 1000} {
			w := &world{map[Kind][]Resource{}}
			for i := range n {
				w.objects[k] = append(w.objects[k], Resource{
					ID: uint32(i), Pid: 77, Port: 1, Connected: true, QPs: make([]uint32, i%200),
					Src: netip.MustParseAddrPort("192.0.2.1:5"), Dst: netip.MustParseAddrPort("[2001:db8::1]:6"),
				})
			}
			got := answers(t, w, ask(commands[k], flagDump, num(attrDevIndex, 0)))
			if got[len(got)-1].kind != typeDone {
				t.Fatalf("kind %d: no end", k)
			}
			next := uint32(0)
			for _, m := range got[:len(got)-1] {
				for _, e := range nested(t, m.attrs[shapes[k].table]) {
					id, ok := e.u32(shapes[k].id)
					pid, _ := e.u32(attrPid)
					if !ok || id != next || pid != 77 {
						t.Fatalf("kind %d: object %d of process %d, want %d", k, id, pid, next)
					}
					next++
				}
			}
			if int(next) != n {
				t.Errorf("kind %d: %d objects, want %d", k, next, n)
			}
			if n == 0 {
				continue
			}
			one := answers(t, w, ask(commands[k], flagAck, num(attrDevIndex, 0), num(shapes[k].id, 0)))
			if id, _ := one[0].u32(shapes[k].id); len(one) != 2 || id != 0 || one[1].errno() != 0 {
				t.Errorf("kind %d: %+v", k, one)
			}
		}
	}
}

// Queue pairs without a port are not listed for the port.
func TestDumpOfPort(t *testing.T) {
	w := &world{map[Kind][]Resource{QP: {{ID: 1, Port: 1}, {ID: 2}}}}
	got := answers(t, w, ask(cmdResQPGet, flagDump, num(attrDevIndex, 0), num(attrPortIndex, 1)))
	if list := nested(t, got[0].attrs[attrQP]); len(list) != 1 {
		t.Errorf("%d queue pairs of the port, want 1", len(list))
	}
}

func TestCounters(t *testing.T) {
	got := answers(t, &world{}, ask(cmdStatGet, 0, num(attrDevIndex, 0), num(attrPortIndex, 1)))
	list := nested(t, got[0].attrs[attrCounters])
	if len(list) != 2 {
		t.Fatalf("%+v", got)
	}
	if name, _ := list[1].text(attrCounterName); name != "rcvd_pkts" || order.Uint64(list[1].attrs[attrCounterValue]) != 8 {
		t.Errorf("%+v", list[1])
	}
}

// A reader that closes its socket ends the answer.
func TestSendFails(t *testing.T) {
	w := &world{map[Kind][]Resource{MR: make([]Resource, 1000)}}
	n, gone := 0, errors.New("gone")
	err := Answer(ask(cmdResMRGet, flagDump, num(attrDevIndex, 0)), w, func([]byte) error { n++; return gone })
	if err != gone || n != 1 {
		t.Errorf("%v after %d datagrams", err, n)
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add(ask(cmdGet, flagDump|flagAck))
	f.Add(ask(cmdGetChardev, 0, num(attrDevIndex, 0), str(attrChardevType, "uverbs")))
	f.Add(ask(cmdResSRQGet, flagDump, num(attrDevIndex, 0), num(attrPortIndex, 1)))
	f.Add(append(ask(cmdStatGet, 0, num(attrDevIndex, 0), num(attrPortIndex, 1)), ask(cmdSet, 0)...))
	w := &world{map[Kind][]Resource{SRQ: {{ID: 1, QPs: make([]uint32, 300)}}, QP: {{ID: 1}}, CMID: {{ID: 2}}}}
	f.Fuzz(func(t *testing.T, b []byte) {
		err := Answer(b, w, func(a []byte) error {
			if r, body, rest, ok := next(a); !ok || len(rest) != 0 || len(a) > maxDatagram || r.kind >= typeMin && r.parse(body) != nil {
				t.Fatalf("a malformed answer: %x", a)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}
