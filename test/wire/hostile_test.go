package wire

import (
	"bytes"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/net/wire"
	"vrdma.dev/vrdma/internal/testkit/golden"
	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/test/workload"
)

// attack is one kind of thing that an attacker does.
type attack struct {
	name string
	// forge makes packets from recorded ones: those that host b sent to a queue pair of host a.
	forge func(t testing.TB, k *attacker, seen []golden.Packet) [][]byte
	// answered: the packets look right to the queue pair, or are for queue pair 1, so host a may answer. It must not
	// send more bytes than it received. All other packets get no answer, and each is counted.
	answered bool
}

// somebody is a peer with a port of RoCEv2.
func somebody(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, 0xc123) }

// each forges one packet from each of n samples.
func each(seen []golden.Packet, n int, f func(p golden.Packet) []byte) (out [][]byte) {
	for i := range n {
		out = append(out, f(seen[i*len(seen)/n]))
	}
	return out
}

// patch changes a packet's headers.
func patch(data []byte, f func(wire.BTH)) []byte {
	data = bytes.Clone(data)
	f(wire.BTH(data))
	return data
}

var attacks = []attack{
	{name: "a stranger", forge: func(t testing.TB, k *attacker, seen []golden.Packet) [][]byte {
		return each(seen, 300, func(p golden.Packet) []byte { return k.forge(somebody(k.stranger()), p.Data, true) })
	}},
	{name: "a stranger who counts", forge: func(t testing.TB, k *attacker, seen []golden.Packet) [][]byte {
		last := seen[len(seen)-1].Data
		psn := wire.BTH(last).PSN()
		return each(seen, 300, func(p golden.Packet) []byte {
			psn++
			return k.forge(somebody(k.stranger()), patch(last, func(b wire.BTH) { b.SetPSN(psn & 0xffffff) }), true)
		})
	}},
	{name: "no such queue pair", forge: func(t testing.TB, k *attacker, seen []golden.Packet) [][]byte {
		return each(seen, 300, func(p golden.Packet) []byte {
			return k.forge(p.Src, patch(p.Data, func(b wire.BTH) { b.SetDestQP((b.DestQP() + 1 + k.rng.Uint32N(1000)) & 0xffffff) }), true)
		})
	}},
	{name: "damaged", forge: func(t testing.TB, k *attacker, seen []golden.Packet) [][]byte {
		return each(seen, 300, func(p golden.Packet) []byte {
			data := bytes.Clone(p.Data)
			// The padding's length decides whether the packet is malformed.
			data[2+k.rng.IntN(2)] ^= 0x5a
			data[8+k.rng.IntN(len(data)-8)] ^= 1 << k.rng.IntN(8)
			return k.forge(p.Src, data, false)
		})
	}},
	{name: "cut short", forge: func(t testing.TB, k *attacker, seen []golden.Packet) (out [][]byte) {
		longest := slices.MaxFunc(seen, func(a, b golden.Packet) int { return len(a.Data) - len(b.Data) })
		for n := 1; n < len(longest.Data); n += 1 + n/16 {
			data := patch(longest.Data, func(b wire.BTH) { b.SetPKey(0x8001) }) // the packet must not pass by a 16-bit ICRC
			out = append(out, k.forge(longest.Src, data[:n], false), k.forge(somebody(k.stranger()), longest.Data[:n], true))
		}
		return out
	}},
	{name: "too long", forge: func(t testing.TB, k *attacker, seen []golden.Packet) [][]byte {
		return each(seen, 100, func(p golden.Packet) []byte {
			most := 1500 - wire.IPv6Size - wire.UDPSize
			data := append(bytes.Clone(p.Data), make([]byte, most-len(p.Data))...)
			return k.forge(somebody(k.stranger()), data[:most&^3], true)
		})
	}},
	{name: "every opcode", forge: func(t testing.TB, k *attacker, seen []golden.Packet) (out [][]byte) {
		for op := range 256 {
			for _, size := range []int{0, 4, 16, 28, 256, 1000} {
				data := make([]byte, wire.BTHSize+size+wire.ICRCSize)
				for i := range data {
					data[i] = byte(k.rng.Uint32())
				}
				b := wire.BTH(data)
				copy(b, seen[0].Data[:wire.BTHSize])
				data[0] = byte(op)
				out = append(out, k.forge(somebody(k.stranger()), data, true))
			}
		}
		return out
	}},
	{name: "another partition", forge: func(t testing.TB, k *attacker, seen []golden.Packet) [][]byte {
		return each(seen, 100, func(p golden.Packet) []byte {
			return k.forge(p.Src, patch(p.Data, func(b wire.BTH) { b.SetPKey(0x8001) }), true)
		})
	}},
	{name: "congestion, says a stranger", forge: func(t testing.TB, k *attacker, seen []golden.Packet) [][]byte {
		return each(seen, 100, func(p golden.Packet) []byte {
			c := wire.MakeCNP(make([]byte, 64), wire.BTH(p.Data).DestQP())
			return k.forge(somebody(k.stranger()), c.Bytes(), true)
		})
	}},
	{name: "somebody else's conversations, changed", forge: mutants, answered: true},
	{name: "again", answered: true, forge: func(t testing.TB, k *attacker, seen []golden.Packet) [][]byte {
		return each(seen, 300, func(p golden.Packet) []byte { return k.forge(p.Src, p.Data, true) })
	}},
	{name: "from the future", answered: true, forge: func(t testing.TB, k *attacker, seen []golden.Packet) [][]byte {
		return each(seen, 300, func(p golden.Packet) []byte {
			return k.forge(p.Src, patch(p.Data, func(b wire.BTH) { b.SetPSN((b.PSN() + 5000 + k.rng.Uint32N(1000)) & 0xffffff) }), true)
		})
	}},
	{name: "congestion, says the peer", answered: true, forge: func(t testing.TB, k *attacker, seen []golden.Packet) [][]byte {
		return each(seen, 100, func(p golden.Packet) []byte {
			c := wire.MakeCNP(make([]byte, 64), wire.BTH(p.Data).DestQP())
			return k.forge(p.Src, c.Bytes(), true)
		})
	}},
}

// mutants are packets of all golden captures with changed bytes, also of the connection manager, for the attacked queue
// pair and for queue pair 1.
func mutants(t testing.TB, k *attacker, seen []golden.Packet) (out [][]byte) {
	for _, file := range golden.Files(t) {
		packets := golden.Read(t, file)
		for i := 0; i < len(packets); i += 1 + len(packets)/40 {
			data := bytes.Clone(packets[i].Data)
			if len(data) > 1400 {
				continue
			}
			for range k.rng.IntN(4) {
				data[k.rng.IntN(len(data))] ^= byte(1 << k.rng.IntN(8))
			}
			if b := wire.BTH(data); b.DestQP() != wire.GSIQP {
				b.SetDestQP(wire.BTH(seen[0].Data).DestQP())
			}
			out = append(out, k.forge(somebody(k.stranger()), data, true))
		}
	}
	return out
}

// strike sends the packets of an attack and returns their number.
func (k *attacker) strike(frames [][]byte) (bytes int) {
	head := 14 + wire.IPv4Size + wire.UDPSize
	if k.v6 {
		head = 14 + wire.IPv6Size + wire.UDPSize
	}
	for _, f := range frames {
		k.probe.Inject(f)
		bytes += len(f) - head
	}
	return bytes
}

// TestHostileNetwork: whatever comes from the network, the daemon lives, no packet changes a foreign queue pair, every
// dropped packet is counted, and the daemon never sends more than it has received.
func TestHostileNetwork(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run(map[bool]string{false: "ipv4", true: "ipv6"}[v6], func(t *testing.T) {
			k := newAttacker(t, v6)
			// Two programs in the middle of a conversation that is silent now.
			talk := workload.Pingpong("rc", 3000, 4000, "").Start(t, k.a.side(v6), k.b.side(v6))
			programs := []*harness.Process{talk.Server.(*harness.Process), talk.Client.(*harness.Process)}
			k.await(t, talk)
			for _, p := range programs {
				p.Signal(syscall.SIGSTOP)
			}
			k.quiet(t)
			k.mu.Lock()
			seen := slices.Clone(k.samples)
			k.mu.Unlock()
			// Packets to the queue pair; the connection's other packets do not count.
			qp := wire.BTH(seen[len(seen)-1].Data).DestQP()
			seen = slices.DeleteFunc(seen, func(p golden.Packet) bool { return wire.BTH(p.Data).DestQP() != qp })
			for _, a := range attacks {
				t.Run(a.name, func(t *testing.T) { k.run(t, a, seen) })
			}
			for _, p := range programs {
				p.Signal(syscall.SIGCONT)
			}
			if _, _, err := talk.Result(2 * minute); err != nil {
				t.Errorf("the conversation does not go on: %v", err)
			}
			k.under(t, seen)
		})
	}
}

// await waits until the two programs talk.
func (k *attacker) await(t *testing.T, talk *harness.Conversation) {
	t.Helper()
	const some = 200
	talks := harness.Poll(minute, func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return len(k.samples) > some || talk.Client.Ended(0)
	})
	if !talks || talk.Client.Ended(0) {
		t.Fatalf("no conversation\n%v", talk)
	}
}

// run runs one attack on a silent conversation.
func (k *attacker) run(t *testing.T, a attack, seen []golden.Packet) {
	frames := a.forge(t, k, seen)
	before, counted, out := k.a.Status(t).Counters, k.counted(t), k.sent()
	in := k.strike(frames)
	if a.answered {
		k.quiet(t)
	} else if !harness.Poll(minute, func() bool { return k.counted(t) >= counted+uint64(len(frames)) }) {
		t.Errorf("%d packets were sent, %d are counted", len(frames), k.counted(t)-counted)
	}
	after := k.a.Status(t).Counters
	if answer := k.sent() - out; answer > in {
		t.Errorf("%d bytes were sent for %d received", answer, in)
	}
	for _, name := range []string{"rdma_recvs", "rdma_sends", "retry_exceeded_err", "retrans_pkts"} {
		if after[name] != before[name] {
			t.Errorf("%s: %d, and before %d; want no change", name, after[name], before[name])
		}
	}
	if !a.answered && after["sent_pkts"] != before["sent_pkts"] {
		t.Errorf("sent_pkts: %d, and before %d; want silence", after["sent_pkts"], before["sent_pkts"])
	}
	t.Logf("%d packets, %d bytes; %d bytes in answer", len(frames), in, k.sent()-out)
}

// under attacks while programs that check every byte work.
func (k *attacker) under(t *testing.T, seen []golden.Packet) {
	for _, kind := range []string{"rc", "ud"} {
		t.Run("meanwhile/"+kind, func(t *testing.T) {
			done := make(chan struct{})
			var flood sync.WaitGroup
			flood.Go(func() {
				for {
					for _, a := range attacks {
						// Only as many packets as a daemon can process: this test is not about floods.
						for f := range slices.Chunk(a.forge(t, k, seen), 10) {
							select {
							case <-done:
								return
							case <-time.After(time.Millisecond):
								k.strike(f)
							}
						}
					}
				}
			})
			defer flood.Wait()
			defer close(done)
			defer k.explain(t)
			workload.Exchange(t, kind, "-n 40").Run(t, k.a.side(k.v6), k.b.side(k.v6), 2*minute)
		})
	}
}

// explain logs where packets may have been lost, after a failure: in the daemons, or in the kernel's sockets and interfaces.
func (k *attacker) explain(t *testing.T) {
	if !t.Failed() {
		return
	}
	for _, h := range []*host{k.a, k.b} {
		t.Logf("%s: %v", h.ip4, h.Status(t).Counters)
		h.space.Do(t, func() {
			for _, file := range []string{"udp", "udp6", "snmp", "snmp6", "dev", "softnet_stat"} {
				text, _ := os.ReadFile("/proc/thread-self/net/" + file) // what is not there explains nothing
				t.Logf("%s:\n%s", file, text)
			}
		})
	}
}
