package wire

import (
	"bytes"
	"reflect"
	"testing"

	"vrdma.dev/vrdma/internal/testkit/golden"
)

// messages makes a typed view of a CM message's data, by attribute.
var messages = map[CMMessage]func(data []byte) any{
	CMREQ:     func(d []byte) any { return REQ(d) },
	CMMRA:     func(d []byte) any { return MRA(d) },
	CMREJ:     func(d []byte) any { return REJ(d) },
	CMREP:     func(d []byte) any { return REP(d) },
	CMRTU:     func(d []byte) any { return RTU(d) },
	CMDREQ:    func(d []byte) any { return DREQ(d) },
	CMDREP:    func(d []byte) any { return DREP(d) },
	CMSIDRREQ: func(d []byte) any { return SIDRREQ(d) },
	CMSIDRREP: func(d []byte) any { return SIDRREP(d) },
	CMLAP:     func(d []byte) any { return LAP(d) },
	CMAPR:     func(d []byte) any { return APR(d) },
}

// copyFields copies a message field by field with the getters and setters of its type.
func copyFields(dst, src any) {
	d, s := reflect.ValueOf(dst), reflect.ValueOf(src)
	for i := range s.NumMethod() {
		name := s.Type().Method(i).Name
		if name == "IsValid" {
			continue
		}
		if set := d.MethodByName("Set" + name); set.IsValid() {
			set.Call(s.Method(i).Call(nil))
			continue
		}
		if s.Method(i).Type().NumOut() != 1 {
			continue // a setter
		}
		from, to := s.Method(i).Call(nil)[0], d.Method(i).Call(nil)[0]
		if from.Type() == reflect.TypeFor[REQPath]() {
			copyFields(to.Interface(), from.Interface())
			continue
		}
		reflect.Copy(to, from)
	}
}

// TestGoldenCM rebuilds every connection manager message that rxe sent.
func TestGoldenCM(t *testing.T) {
	seen := map[CMMessage]int{}
	for _, file := range golden.Files(t) {
		frames(t, file, func(f *frame) {
			m := f.packet.MAD()
			if m == nil {
				return
			}
			if !m.IsCM() {
				t.Errorf("%s, packet %d: %v", file, f.number, m)
				return
			}
			kind := CMMessage(m.Attribute())
			seen[kind]++
			out := MAD(make([]byte, MADSize))
			out.InitCM(kind, m.TID())
			out.SetStatus(m.Status())
			out.SetClassSpecific(m.ClassSpecific())
			out.SetModifier(m.Modifier())
			copyFields(messages[kind](out.Data()), messages[kind](m.Data()))
			if !bytes.Equal(out, m) {
				t.Errorf("%s, packet %d, %v:\n got % x\nwant % x", file, f.number, m, []byte(out), []byte(m))
			}
		})
	}
	for _, kind := range []CMMessage{CMREQ, CMREP, CMRTU, CMREJ, CMDREQ, CMDREP, CMSIDRREQ, CMSIDRREP} {
		if seen[kind] == 0 {
			t.Errorf("no %v in the captures", kind)
		}
	}
}

// TestGoldenHandshake checks the fields of one connection's messages.
func TestGoldenHandshake(t *testing.T) {
	var req REQ
	var rep REP
	frames(t, golden.Path("rping.pcap"), func(f *frame) {
		switch m := f.packet.MAD(); {
		case m == nil:
			if req == nil || rep == nil {
				t.Fatal("data before the handshake")
			}
		case m.Attribute() == uint16(CMREQ):
			req = bytes.Clone(m.Data())
		case m.Attribute() == uint16(CMREP):
			rep = bytes.Clone(m.Data())
		case m.Attribute() == uint16(CMRTU):
			rtu := RTU(m.Data())
			if rtu.LocalCommID() != req.LocalCommID() || rtu.RemoteCommID() != rep.LocalCommID() {
				t.Errorf("RTU for %#x and %#x, want %#x and %#x", rtu.LocalCommID(), rtu.RemoteCommID(), req.LocalCommID(), rep.LocalCommID())
			}
		}
	})
	if req == nil || rep == nil {
		t.Fatal("no handshake")
	}
	if rep.RemoteCommID() != req.LocalCommID() {
		t.Errorf("REP for %#x, want %#x", rep.RemoteCommID(), req.LocalCommID())
	}
	path := req.Primary()
	wantLocal, wantRemote := mapped([4]byte{10, 77, 0, 3}), mapped([4]byte{10, 77, 0, 2})
	if path.LocalGID() != wantLocal || path.RemoteGID() != wantRemote || path.LocalLID() != 0xffff && path.LocalLID() != 0 {
		t.Errorf("path from %x to %x, LID %#x", path.LocalGID(), path.RemoteGID(), path.LocalLID())
	}
	ip := IPAddressing(req.Private())
	if !ip.IsValid() || ip.IPVersion() != 4 || [4]byte(ip.src4()) != [4]byte{10, 77, 0, 3} {
		t.Errorf("IP addressing % x", []byte(ip[:IPAddressingSize]))
	}
	if req.PKey() != 0xffff || req.LocalQPN() != 0x11 || rep.LocalQPN() != 0x11 || req.PathMTU() != 3 || req.TransportService() != 0 {
		t.Errorf("REQ: P_Key %#x, QP %#x, MTU %d, service %d; REP: QP %#x", req.PKey(), req.LocalQPN(), req.PathMTU(), req.TransportService(), rep.LocalQPN())
	}
}

func (a IPAddressing) src4() []byte { s := a.Src(); return s[12:] }

// TestFields sets every field of every message to all ones and to zero, and checks that no other field
// changes.
func TestFields(t *testing.T) {
	for kind, view := range messages {
		testFields(t, kind.String(), CMSize, view)
	}
	testFields(t, "path", reqAlternate-reqPrimary, func(d []byte) any { return REQPath(d) })
	testFields(t, "IP addressing", IPAddressingSize, func(d []byte) any { return IPAddressing(d) })
}

func testFields(t *testing.T, name string, size int, view func([]byte) any) {
	data := make([]byte, size)
	v := reflect.ValueOf(view(data))
	used := make([]byte, size)
	for i := range v.NumMethod() {
		field := v.Type().Method(i).Name
		set := v.MethodByName("Set" + field)
		if !set.IsValid() {
			continue
		}
		clear(data)
		ones := reflect.New(set.Type().In(0)).Elem()
		fill(ones)
		set.Call([]reflect.Value{ones})
		got := v.Method(i).Call(nil)[0]
		for at := range data {
			if used[at]&data[at] != 0 {
				t.Errorf("%s: %s overlaps another field in byte %d", name, field, at)
			}
			used[at] |= data[at]
		}
		// A getter returns the value set, cut to the width of the field.
		if got.IsZero() {
			t.Errorf("%s: %s is zero after ones were written to it", name, field)
		}
		for at := range data {
			data[at] = 0xff
		}
		set.Call([]reflect.Value{reflect.Zero(set.Type().In(0))})
		if got := v.Method(i).Call(nil)[0]; !got.IsZero() {
			t.Errorf("%s: %s is %v after zero was written to it", name, field, got)
		}
		var bits, cleared int
		for at := range data {
			cleared += popcount(^data[at])
		}
		clear(data)
		set.Call([]reflect.Value{ones})
		for at := range data {
			bits += popcount(data[at])
		}
		if bits != cleared && name != "IP addressing" {
			t.Errorf("%s: %s: ones set %d bits, zero clears %d", name, field, bits, cleared)
		}
	}
}

func popcount(b byte) (n int) {
	for ; b != 0; b &= b - 1 {
		n++
	}
	return n
}

func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Array:
		for i := range v.Len() {
			v.Index(i).SetUint(0xff)
		}
	default:
		v.SetUint(1<<v.Type().Bits() - 1)
	}
}
