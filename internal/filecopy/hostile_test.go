package filecopy

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// An intruder is a client that knows the key and violates the protocol.
type intruder struct {
	t       *testing.T
	p       Transport
	control conn
	stream  conn
	said    chan message
}

// intrude opens a session for sending, with one stream.
func intrude(t *testing.T, l *lab) *intruder {
	t.Helper()
	ctx := testContext(t)
	i := &intruder{t: t, said: make(chan message, 1000)}
	var err error
	i.p, err = l.open(ctx)
	ok(t, err)
	i.control, err = i.p.dial(ctx, l.addr)
	ok(t, err)
	ok(t, introduce(ctx, i.control, l.v.Key, &answer{}))
	ok(t, i.control.send(&request{Put: true, Streams: 1, Slots: 2}))
	m, err := i.control.recv(ctx)
	ok(t, err)
	i.stream, err = i.p.dial(ctx, l.addr)
	ok(t, err)
	ok(t, introduce(ctx, i.stream, l.v.Key, &answer{Stream: 1, Session: m.(*granted).Session}))
	ok(t, i.stream.attach(ctx, maxSlots))
	t.Cleanup(func() {
		i.stream.close()
		i.control.close()
		i.p.Close()
	})
	return i
}

// offer offers a file and waits until it is accepted.
func (i *intruder) offer(size uint64) {
	i.t.Helper()
	ok(i.t, i.control.send(&file{meta: meta{ID: 1, Path: "f", Mode: 0o644}, Size: size}))
	m, err := i.control.recv(testContext(i.t))
	ok(i.t, err)
	if _, is := m.(*accept); !is {
		i.t.Fatalf("got %T %v, want accept", m, m)
	}
}

// chunk sends a chunk with a modified header.
func (i *intruder) chunk(h header, data []byte, change func(head []byte)) {
	i.t.Helper()
	s, err := i.stream.buffer(testContext(i.t))
	ok(i.t, err)
	h.sum(data)
	copy(s.data, data)
	h.put(s.head)
	if change != nil {
		change(s.head)
	}
	ok(i.t, i.stream.post(s, len(data)))
}

// thrown waits until the server ends the session and returns its reason.
func (i *intruder) thrown() string {
	i.t.Helper()
	for {
		m, err := i.control.recv(testContext(i.t))
		if err != nil {
			if errors.Is(err, context.DeadlineExceeded) {
				i.t.Fatal("the server keeps the session")
			}
			return err.Error()
		}
		switch m := m.(type) {
		case *refusal:
			return m.Text
		case *failed:
			return m.Text
		}
	}
}

// TestLiars: the server rejects a client that lies, with a reason, and keeps nothing of it.
func TestLiars(t *testing.T) {
	block := content(blockSize)
	one := header{id: 1, length: blockSize}
	lies := []struct {
		name string
		lie  func(*intruder)
		want string
	}{
		{"path with ..", func(i *intruder) { i.control.send(&file{meta: meta{ID: 1, Path: "a/../../x"}}) }, "has a part \"..\""},
		{"absolute path", func(i *intruder) { i.control.send(&directory{meta{ID: 1, Path: "/x"}}) }, "absolute"},
		{"zero byte", func(i *intruder) { i.control.send(&directory{meta{ID: 1, Path: "a\x00b"}}) }, "zero byte"},
		{"number again", func(i *intruder) { i.offer(1); i.control.send(&file{meta: meta{ID: 1, Path: "g"}}) }, "numbered 1 after 1"},
		{"huge", func(i *intruder) { i.control.send(&file{meta: meta{ID: 1, Path: "f"}, Size: 1 << 62}) }, "a file of 4611686018427387904"},
		{"more than fits", func(i *intruder) { i.control.send(&file{meta: meta{ID: 1, Path: "f"}, Size: 8 << 40}) }, "no space"},
		{"not its turn", func(i *intruder) { i.control.send(&accept{ID: 1}) }, "does not send"},
		{"too many", func(i *intruder) {
			go func() {
				for n := range uint32(filesAhead + 1) {
					i.control.send(&file{meta: meta{ID: n + 1, Path: strings.Repeat("x", int(n)+1)}, Size: 10})
				}
			}()
		}, "more than 32 entries"},
		{"before it is accepted", func(i *intruder) { i.chunk(one, block, nil) }, "did not offer"},
		{"past the end", func(i *intruder) {
			i.offer(blockSize)
			i.chunk(header{id: 1, offset: blockSize, length: blockSize}, block, nil)
		}, "bytes at 131072 of a file of 131072"},
		{"far past the end", func(i *intruder) {
			i.offer(blockSize)
			i.chunk(header{id: 1, offset: 1<<63 + 1<<62, length: blockSize}, block, nil)
		}, "of a file of 131072"},
		{"longer than it is", func(i *intruder) {
			i.offer(4 * blockSize)
			i.chunk(header{id: 1, length: blockSize}, block[:4096], nil)
		}, ""},
		{"shorter than it is", func(i *intruder) { i.offer(4 * blockSize); i.chunk(header{id: 1, length: 4096}, block, nil) }, ""},
		{"no length", func(i *intruder) { i.offer(blockSize); i.chunk(header{id: 1}, nil, nil) }, "says it has 0 bytes"},
		{"a part of a block", func(i *intruder) { i.offer(4 * blockSize); i.chunk(header{id: 1, length: 4096}, block[:4096], nil) }, "neither whole blocks"},
		{"not at a block", func(i *intruder) {
			i.offer(4 * blockSize)
			i.chunk(header{id: 1, offset: 1, length: blockSize}, block, nil)
		}, "not a multiple"},
		{"twice", func(i *intruder) { i.offer(4 * blockSize); i.chunk(one, block, nil); i.chunk(one, block, nil) }, "block 0 twice"},
		{"wrong sum", func(i *intruder) {
			i.offer(4 * blockSize)
			s, err := i.stream.buffer(testContext(i.t))
			ok(i.t, err)
			h := one
			h.sum(block)
			copy(s.data, block)
			s.data[77] ^= 1
			h.put(s.head)
			ok(i.t, i.stream.post(s, blockSize))
		}, "the block at 0 has the sum"},
		{"damaged header", func(i *intruder) {
			i.offer(4 * blockSize)
			i.chunk(one, block, func(b []byte) { b[headOffset+1] ^= 1 })
		}, "header of a chunk"},
		{"no header", func(i *intruder) { i.offer(4 * blockSize); i.chunk(one, block, func(b []byte) { clear(b) }) }, "begins with 0x0"},
		{"end too early", func(i *intruder) {
			i.offer(2 * blockSize)
			i.chunk(one, block, nil)
			i.control.send(&end{ID: 1, Sent: blockSize})
		}, "damaged"},
		{"more sent than there is", func(i *intruder) { i.offer(10); i.control.send(&end{ID: 1, Sent: 11}) }, "11 bytes sent, of a file of 10"},
		{"end of nothing", func(i *intruder) { i.control.send(&end{ID: 7}) }, "did not offer"},
	}
	for name, open := range places(t) {
		l := newLab(t, open, &Server{Write: true, Key: NewKey()})
		for _, c := range lies {
			if name == "tcp" && c.name == "longer than it is" {
				continue // the rest could still arrive
			}
			t.Run(name+"/"+c.name, func(t *testing.T) {
				i := intrude(t, l)
				c.lie(i)
				if said := i.thrown(); !strings.Contains(said, c.want) {
					t.Errorf("it was told %q, want %q", said, c.want)
				}
				i.stream.shut()
				i.control.shut()
				waitFor(t, func() bool { l.v.mu.Lock(); defer l.v.mu.Unlock(); return len(l.v.sessions) == 0 })
			})
		}
		waitFor(t, func() bool { list, _ := filepath.Glob(filepath.Join(l.dir, ".*")); return len(list) == 0 })
		tidy(t, l.dir)
	}
}

// TestGreedy: a client gets a limited share of the server's memory, and all clients together a limited total.
func TestGreedy(t *testing.T) {
	for name, open := range places(t) {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, open, &Server{Write: true})
			write(t, filepath.Join(l.dir, "a"), content(3*maxChunk))
			p, err := open(testContext(t))
			ok(t, err)
			defer p.Close()
			ask := func(put bool) (conn, message) {
				c, err := p.dial(testContext(t), l.addr)
				ok(t, err)
				t.Cleanup(func() { c.close() })
				ok(t, introduce(testContext(t), c, nil, &answer{}))
				ok(t, c.send(&request{Put: put, Streams: 255, Slots: 255}))
				m, err := c.recv(testContext(t))
				ok(t, err)
				return c, m
			}
			const most = maxMemory / (maxStreams * (serverSlots + 1))
			var conns []conn
			for i := range most {
				c, m := ask(i%2 == 0)
				g, is := m.(*granted)
				if !is {
					t.Fatalf("session %d: got %T %v", i, m, m)
				}
				conns = append(conns, c)
				if i > 0 || name != "rdma" {
					continue
				}
				s, err := p.dial(testContext(t), l.addr)
				ok(t, err)
				defer s.close()
				ok(t, introduce(testContext(t), s, nil, &answer{Stream: 1, Session: g.Session}))
				m, err = s.recv(testContext(t))
				ok(t, err)
				if w := m.(*window); w.Slots != serverSlots {
					t.Errorf("it has %d slots, want %d", w.Slots, serverSlots)
				}
			}
			_, m := ask(true)
			if r, is := m.(*refusal); !is || !strings.Contains(r.Text, "memory for chunks, 1536 MiB: try again later") {
				t.Errorf("got %T %v, want a refusal", m, m)
			}
			for _, c := range conns {
				c.shut()
			}
			waitFor(t, func() bool { l.v.mu.Lock(); defer l.v.mu.Unlock(); return l.v.memory == 0 })
			// A client with a larger window than the server fills is served.
			c := l.client()
			c.Slots = maxSlots
			back := t.TempDir()
			ok(t, c.Get(testContext(t), []string{"a"}, back, true))
			same(t, filepath.Join(back, "a"), content(3*maxChunk))
		})
	}
}

// TestHostileServer: a server cannot make a client write outside of its target, or files that it did not ask for.
func TestHostileServer(t *testing.T) {
	at := func(p string) meta { return meta{ID: 1, Path: p, Mode: 0o755} }
	for name, open := range places(t) {
		for _, evil := range []struct {
			name      string
			recursive bool
			m         message
		}{
			{"..", true, &file{meta: at("../evil"), Size: 10}},
			{"absolute", true, &file{meta: at("/evil"), Size: 10}},
			{"inner ..", true, &file{meta: at("x/../../evil"), Size: 10}},
			{"nothing", true, &file{meta: at(""), Size: 10}},
			{"another file", false, &file{meta: at("evil"), Size: 10}},
			{"another file with -r", true, &file{meta: at("evil"), Size: 10}},
			{"another directory with -r", true, &directory{at("evil")}},
			{"below another with -r", true, &file{meta: at("here/evil"), Size: 10}},
			{"empty file", false, &file{meta: at("evil")}},
			{"below", false, &file{meta: at("x/evil"), Size: 10}},
			{"below what is there", false, &file{meta: at("there/evil"), Size: 10}},
			{"directory", false, &directory{at("x")}},
			{"link", false, &link{at("x"), "here"}},
			{"link below", false, &link{at("there/x"), "y"}},
		} {
			t.Run(name+"/"+evil.name, func(t *testing.T) {
				at, err := open(testContext(t))
				ok(t, err)
				defer at.Close()
				l, err := at.listen("127.0.0.1:0")
				ok(t, err)
				defer l.close()
				done := make(chan struct{})
				go func() {
					defer close(done)
					make, err := l.accept(testContext(t))
					if err != nil {
						return
					}
					c, err := make(testContext(t))
					if err != nil {
						return
					}
					defer c.close()
					if _, err := greet(testContext(t), c, nil); err != nil {
						return
					}
					c.send(&granted{})
					c.send(evil.m)
					for {
						m, err := c.recv(testContext(t))
						if _, said := m.(*refusal); said || err != nil {
							return
						}
					}
				}()
				outer := t.TempDir()
				dir := filepath.Join(outer, "to")
				write(t, filepath.Join(dir, "here"), nil)
				ok(t, os.Mkdir(filepath.Join(dir, "there"), 0o700))
				c := &Client{Open: open, Addrs: []string{l.addr()}, Recursive: evil.recursive, Streams: 1, Slots: 1, Progress: &Progress{}, Report: func(string, error) {}, Notice: func(string) {}}
				var v *ViolationError
				if err := c.Get(testContext(t), []string{"dir/x"}, dir, true); !errors.As(err, &v) {
					t.Errorf("got %v", err)
				}
				<-done
				tidy(t, outer, "to")
				tidy(t, dir, "here", "there")
				tidy(t, filepath.Join(dir, "there"))
			})
		}
	}
}

// FuzzMessage: a message is decoded or rejected, and a decoded one encodes to the same bytes.
func FuzzMessage(f *testing.F) {
	for _, m := range []message{
		&challenge{Version: 1, Public: true}, &answer{}, &request{Put: true, Path: "a/b"}, &file{meta: meta{ID: 3, Path: "x", Mode: 0o644}, Size: 5, Sparse: true},
		&link{meta{ID: 1, Path: "y"}, "z"}, &have{ID: 1, First: 960, Sums: []uint64{1, 0, 3}}, &end{ID: 9, Sent: 12}, &failed{ID: 2, Text: "no"}, &finish{}, &window{},
	} {
		f.Add(encode(nil, m))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decode(b)
		if err != nil {
			var v *ViolationError
			if !errors.As(err, &v) {
				t.Errorf("%v is no violation", err)
			}
			return
		}
		if again := encode(nil, m); !bytes.Equal(again, b) {
			t.Errorf("%v is written as %x, was read from %x", m, again, b)
		}
	})
}

// FuzzHeader: the same for the header of a chunk.
func FuzzHeader(f *testing.F) {
	var b [headSize]byte
	h := header{id: 1, offset: 5 * blockSize, length: 77}
	h.put(b[:])
	f.Add(b[:])
	f.Fuzz(func(t *testing.T, b []byte) {
		var h, again header
		if h.parse(b) != nil {
			return
		}
		var own [headSize]byte
		h.put(own[:])
		if err := again.parse(own[:]); err != nil || !reflect.DeepEqual(h, again) {
			t.Errorf("%v became %v (%v)", h, again, err)
		}
		if h.length == 0 || h.length > maxChunk || h.offset%blockSize != 0 {
			t.Errorf("%v was taken", h)
		}
	})
}

// FuzzAddress: an address is parsed or rejected.
func FuzzAddress(f *testing.F) {
	for _, s := range []string{"a", "h:a", "rdma://h/a", "rdma://[::1]:70/a", "[::1]:a", "u@h:", "./a:b", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := ParseAddress(s)
		if err == nil && !a.Local() && (a.Host == "" || strings.HasPrefix(a.Host, "-") && !a.Direct()) {
			t.Errorf("%q is %+v", s, a)
		}
	})
}
