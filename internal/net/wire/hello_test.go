package wire

import (
	"bytes"
	"testing"
)

func TestHello(t *testing.T) {
	q := make(Hello, MADSize)
	q.Init(77, 1<<63|5)
	q.SetSender(FeatureRepair|FeatureShortIDs, 9, "v1.2-3-gabcdef")
	h := MAD(q).Hello()
	if h == nil || !h.IsQuestion() || h.IsAnswer() || h.IsRefusal() || h.Nonce() != 1<<63|5 || h.Protocol() != HelloProtocol ||
		h.Features() != FeatureRepair|FeatureShortIDs || h.Instance() != 9 || h.Version() != "v1.2-3-gabcdef" || h.Challenge() != 0 {
		t.Fatalf("a question comes back as % x", []byte(h))
	}
	a := make(Hello, MADSize)
	a.InitAnswer(q)
	a.SetSender(0, 1, "a-version-that-is-much-longer-than-what-there-is-room-for")
	a.SetChallenge(4)
	h = MAD(a).Hello()
	if h == nil || !h.IsAnswer() || h.IsQuestion() || h.IsRefusal() || h.Nonce() != q.Nonce() || MAD(h).TID() != 77 || h.Challenge() != 4 || len(h.Version()) != 32 {
		t.Fatalf("an answer comes back as % x", []byte(h))
	}
	// The Linux kernel's answer to a question of an unknown class.
	back := MAD(bytes.Clone(q))
	back.SetMethod(MethodGetResp)
	back.SetStatus(0x000c)
	if h = back.Hello(); h == nil || !h.IsRefusal() || h.IsAnswer() {
		t.Errorf("a refusal is not recognised")
	}
	for name, change := range map[string]func(MAD){
		"class": func(m MAD) { m.SetClass(ClassCM) }, "version": func(m MAD) { m.SetClassVersion(2) },
		"attribute": func(m MAD) { m.SetAttribute(2) }, "OUI": func(m MAD) { m[helloOUI] = 0 }, "protocol": func(m MAD) { m[helloProtocol] = 0 },
	} {
		m := MAD(bytes.Clone(q))
		if change(m); m.Hello() != nil {
			t.Errorf("another %s is taken for a hello", name)
		}
	}
}

// FuzzHello checks that no bytes outside of a MAD are read, and that a hello survives a copy.
func FuzzHello(f *testing.F) {
	q := make(Hello, MADSize)
	q.Init(1, 2)
	q.SetSender(7, 9, "v1")
	f.Add([]byte(q))
	f.Fuzz(func(t *testing.T, data []byte) {
		h := MAD(data).Hello()
		if h == nil {
			return
		}
		if n := b2i(h.IsQuestion()) + b2i(h.IsAnswer()) + b2i(h.IsRefusal()); n > 1 {
			t.Errorf("it is %d things at once", n)
		}
		c := make(Hello, MADSize)
		c.Init(MAD(h).TID(), h.Nonce())
		c.SetSender(h.Features(), h.Instance(), h.Version())
		c.SetChallenge(h.Challenge())
		if c.Nonce() != h.Nonce() || c.Features() != h.Features() || c.Instance() != h.Instance() || c.Version() != h.Version() || c.Challenge() != h.Challenge() {
			t.Errorf("got  % x\nwant % x", []byte(c), data)
		}
	})
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}
