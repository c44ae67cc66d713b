package vhostuser

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

// echo returns a device that writes what it reads from a chain into the buffers of the same chain.
func echo(d Device) *Device {
	d.Kicked = func(r *Ring) {
		Contain(func() {
			if !r.Begin() {
				return
			}
			defer r.End()
			var c Chain
			for again := true; again; again = r.Listen() {
				r.Quiet()
				for {
					ok, err := r.Next(&c)
					if !ok || err != nil {
						break
					}
					n := 0
					for i, b := range c.In {
						if i < len(c.Out) {
							n += copy(b, c.Out[i])
						}
					}
					r.Put(&c, n)
				}
				if r.broken {
					return
				}
				r.Publish()
			}
		})
	}
	return &d
}

func TestRing(t *testing.T) {
	for name, features := range map[string]uint64{"plain": 0, "event index": RingEventIdx | RingIndirect} {
		t.Run(name, func(t *testing.T) {
			f := connect(t, echo(Device{Rings: 2, Queues: 1}))
			f.start(2, features)
			r := f.rings[1]
			for i := range 5 * ringNum { // round the ring
				f.heap = 0x10000
				text := bytes.Repeat([]byte{byte(i)}, 100+i)
				out, b := f.alloc(len(text))
				in, answer := f.alloc(len(text))
				copy(b, text)
				head := uint16(2 * i % ringNum)
				if features&RingIndirect != 0 && i%2 == 1 {
					at, table := f.alloc(2 * descSize)
					putDesc(table, 0, desc{out, uint32(len(text)), descNext, 1})
					putDesc(table, 1, desc{in, uint32(len(text)), descWrite, 0})
					r.write(int(head), desc{at, 2 * descSize, descIndirect, 0})
				} else {
					r.write(int(head), desc{out, uint32(len(text)), descNext, head + 1})
					r.write(int(head)+1, desc{in, uint32(len(text)), descWrite, 0})
				}
				r.add(head)
				if got, n := r.wait(); got != uint32(head) || n != uint32(len(text)) || !bytes.Equal(answer, text) {
					t.Fatalf("chain %d of %d bytes came back with %d: want chain %d with %d", got, n, answer[0], head, len(text))
				}
			}
			if base := le.Uint32(f.ask(getVringBase, 0, u32(1, 0), true)[4:]); base != 5*ringNum {
				t.Errorf("the ring stopped at %d: want %d", base, 5*ringNum)
			}
		})
	}
}

// When a driver breaks the rules, its ring is stopped, and nothing else happens.
func TestBrokenRings(t *testing.T) {
	const outside = ramBase + ramSize
	for _, c := range []struct {
		name, want string
		make       func(f *frontEnd, r *driverRing)
	}{
		{"head", "descriptor 16 is none of 16", func(f *frontEnd, r *driverRing) { r.add(ringNum) }},
		{"next", "descriptor 65535 is none", func(f *frontEnd, r *driverRing) {
			r.write(0, desc{ramBase, 1, descNext, 65535})
			r.add(0)
		}},
		{"loop", "or it loops", func(f *frontEnd, r *driverRing) {
			r.write(0, desc{ramBase, 1, descNext, 1})
			r.write(1, desc{ramBase, 1, descNext, 0})
			r.add(0)
		}},
		{"outside", "outside of RAM", func(f *frontEnd, r *driverRing) {
			r.write(0, desc{outside, 1, 0, 0})
			r.add(0)
		}},
		{"beyond", "outside of RAM", func(f *frontEnd, r *driverRing) {
			r.write(0, desc{outside - 1, 2, 0, 0})
			r.add(0)
		}},
		{"wraps", "outside of RAM", func(f *frontEnd, r *driverRing) {
			r.write(0, desc{^uint64(0), ^uint32(0), descWrite, 0})
			r.add(0)
		}},
		{"before", "outside of RAM", func(f *frontEnd, r *driverRing) {
			r.write(0, desc{ramBase - 1, 2, descWrite, 0})
			r.add(0)
		}},
		{"order", "follows one to be written", func(f *frontEnd, r *driverRing) {
			r.write(0, desc{ramBase, 1, descWrite | descNext, 1})
			r.write(1, desc{ramBase, 1, 0, 0})
			r.add(0)
		}},
		{"table outside", "indirect table at", func(f *frontEnd, r *driverRing) {
			r.write(0, desc{outside - 16, 32, descIndirect, 0})
			r.add(0)
		}},
		{"table of 17 bytes", "indirect table of 17", func(f *frontEnd, r *driverRing) {
			r.write(0, desc{ramBase, 17, descIndirect, 0})
			r.add(0)
		}},
		{"table without end", "indirect table of", func(f *frontEnd, r *driverRing) {
			r.write(0, desc{ramBase, 0xffff_fff0, descIndirect, 0})
			r.add(0)
		}},
		{"table in a table", "indirect table of 16", func(f *frontEnd, r *driverRing) {
			at, table := f.alloc(descSize)
			putDesc(table, 0, desc{at, descSize, descIndirect, 0})
			r.write(0, desc{at, descSize, descIndirect, 0})
			r.add(0)
		}},
		{"too many", "chains are available", func(f *frontEnd, r *driverRing) {
			r.added += 100
			r.add(0)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			broken := make(chan error, 1)
			f := connect(t, echo(Device{Rings: 2, Queues: 1, Broken: func(_ *Ring, err error) { broken <- err }}))
			f.start(2, RingEventIdx|RingIndirect)
			c.make(f, f.rings[0])
			if err := <-broken; !errors.Is(err, ErrBroken) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %q: want %q", err, c.want)
			}
			// Its other ring continues, and the stopped one gets no more kicks.
			r := f.rings[1]
			out, _ := f.alloc(1)
			r.write(0, desc{out, 1, 0, 0})
			r.add(0)
			r.wait()
			f.rings[0].kick.Write(one)
			r.add(0)
			r.wait()
			select {
			case err := <-broken:
				t.Errorf("again: %v", err)
			default:
			}
			// After a stop and a start it works again.
			f.ask(getVringBase, 0, u32(0, 0), true)
			f.ask(getVringBase, 0, u32(1, 0), true)
			clear(f.ram[:2*usedArea])
			f.start(2, RingEventIdx)
			f.rings[0].write(0, desc{out, 1, 0, 0})
			f.rings[0].add(0)
			f.rings[0].wait()
		})
	}
}

// A dead back end leaves the used index; the next one continues there.
func TestReconnect(t *testing.T) {
	f := connect(t, echo(Device{Rings: 1, Queues: 1}))
	f.start(1, RingEventIdx)
	out, _ := f.alloc(1)
	for range 3 {
		f.rings[0].write(0, desc{out, 1, 0, 0})
		f.rings[0].add(0)
		f.rings[0].wait()
	}
	f.conn.Close()
	if err := f.ended(); err != nil {
		t.Fatal(err)
	}
	r := f.rings[0]
	r.add(0) // nobody sees that
	f.serve(echo(Device{Rings: 1, Queues: 1}))
	f.start(1, RingEventIdx, 3)
	f.rings[0].wait()
	f.rings[0].added++
	f.rings[0].add(0)
	f.rings[0].wait()
}
