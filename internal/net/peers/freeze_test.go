package peers

import (
	"reflect"
	"testing"

	"vrdma.dev/vrdma/internal/net/wire"
	"vrdma.dev/vrdma/internal/state"
)

// frozen replaces the table of n by one that continues with its state, and has these features.
func (n *node) frozen(features uint32) {
	n.w.t.Helper()
	b, err := state.Marshal(n.table.Freeze(n.w.now))
	if err != nil {
		n.w.t.Fatal(err)
	}
	var st TableState
	if err := state.Unmarshal(b, &st); err != nil {
		n.w.t.Fatal(err)
	}
	n.start(features)
	if err := n.table.Thaw(&st, n.w.now); err != nil {
		n.w.t.Fatal(err)
	}
}

// TestThaw: a host that continues with its table asks nobody, and nobody asks it. One that has other features tells the
// others soon.
func TestThaw(t *testing.T) {
	w := newWorld(t)
	a, b, c := w.add(1, all), w.add(2, all), w.add(3, 0)
	a.meet(b)
	b.meet(a)
	a.meet(c)
	w.run(3 * second)
	w.want(a, b, Own, all)
	w.want(b, a, Own, all)
	before, sent := a.table.Freeze(w.now), w.sent
	judged := b.judged
	a.frozen(all)
	w.deliver()
	w.want(a, b, Own, all)
	w.want(a, c, Foreign, 0)
	if again := a.table.Freeze(w.now); !reflect.DeepEqual(again, before) || w.sent != sent || b.judged != judged {
		t.Errorf("after %d messages: %+v, want %+v", w.sent-sent, again, before)
	}
	few := uint32(all &^ wire.FeatureShortIDs)
	a.frozen(few)
	w.deliver()
	w.want(a, b, Own, few)
	w.want(b, a, Own, few)
}

func TestThawRefuses(t *testing.T) {
	for name, hosts := range map[string][]HostState{
		"kind":     {{GID: gid(1), Kind: 7}},
		"twice":    {{GID: gid(1)}, {GID: gid(1)}},
		"unheard":  {{GID: gid(1), Kind: Own}},
		"rounds":   {{GID: gid(1), Rounds: 200}},
		"too many": make([]HostState, maxNamed+maxAnswered+1),
	} {
		n := newWorld(t).add(9, all)
		if n.table.Thaw(&TableState{Hosts: hosts}, 1) == nil {
			t.Errorf("%s: restored", name)
		}
	}
}
