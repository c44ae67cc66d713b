package armcheck

import "testing"

// A ring in the rxe provider's layout (rxe_queue.h of rdma-core, internal/device/nic/ring.go), with two slots. The orders are those of
// the provider, which is the weaker side, whether it fills the ring or empties it. A real ring leaves one slot empty. That hides
// some mistakes, so both are used here.
const (
	ringSlot int8 = 0 // two
	ringProd int8 = 2
	ringCons int8 = 3

	ringElements = 4
)

func ringProducer(flaw string) *script {
	p := newScript("producer")
	for i := range int8(ringElements) {
		var full label
		p.here(&full)
		if flaw != "the producer looks at no consumer" {
			p.load("load the consumer's index", acquire, ringCons, func(x *cpu, v int8) {
				if i-v == 2 {
					x.jump(&full)
				}
			})
		}
		write := func() { p.store("write an element", plainly, ringSlot+i%2, i+1) }
		if flaw != "the index comes first" {
			write()
		}
		p.store("publish it", pickOrder(flaw == "the producer's index is stored relaxed", plainly, release), ringProd, i+1)
		if flaw == "the index comes first" {
			write()
		}
	}
	return p
}

func ringConsumer(flaw string) *script {
	p := newScript("consumer")
	for i := range int8(ringElements) {
		var empty label
		p.here(&empty)
		p.load("load the producer's index", pickOrder(flaw == "the producer's index is loaded relaxed", plainly, acquire), ringProd, func(x *cpu, v int8) {
			if v == i {
				x.jump(&empty)
			}
		})
		free := func() {
			p.store("free it", pickOrder(flaw == "the consumer's index is stored relaxed", plainly, release), ringCons, i+1)
		}
		if flaw == "the consumer frees first" {
			free()
		}
		p.copy("read an element", 0, ringSlot+i%2)
		if flaw != "the consumer frees first" {
			free()
		}
		p.then("is it the right one?", func(x *cpu) {
			if x.reg[0] != i+1 {
				x.breaks("element %d reads as %d", i+1, x.reg[0])
			}
			x.reg[0] = 0
		})
	}
	return p
}

// The consumer reads every element as the producer wrote it.
func TestRing(t *testing.T) {
	check(t, func(flaw string) *weakSystem {
		return &weakSystem{scripts: []*script{ringProducer(flaw), ringConsumer(flaw)}, final: func(*world) string { return "" }}
	}, []flawed{
		{flaw: "the index comes first", least: sequential, want: "reads as"},
		{flaw: "the consumer frees first", least: sequential, want: "reads as"},
		{flaw: "the producer looks at no consumer", least: sequential, want: "reads as"},
		{flaw: "the producer's index is stored relaxed", least: rmo, want: "reads as"},
		{flaw: "the producer's index is loaded relaxed", least: rmo, want: "reads as"},
		{flaw: "the consumer's index is stored relaxed", least: rmo, want: "reads as"},
	})
}
