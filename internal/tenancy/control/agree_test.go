package control

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/events"
	"vrdma.dev/vrdma/internal/tenancy/store"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// Several planes make random changes, are cut off from the store and restarted at random. Meanwhile a NIC without a
// host moves only while it is not open, and its generation counts the moves. Afterwards all agree with the store: the
// world, the rules, the maps and their NICs. No NIC is open on two hosts, and nothing is allocated without an owner.
func TestPlanesAgree(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { planesAgree(t, seed) })
	}
}

func planesAgree(t *testing.T, seed uint64) {
	s := &store.Memory{}
	names := []string{"a", "b", "c"}
	var nodes []*node
	for i, name := range names {
		nodes = append(nodes, join(t, s, name, i+1))
	}
	mustApplyTo(t, nodes[0].plane, pinned)
	ctx, cancel := context.WithCancel(t.Context())
	seen := make(chan int)
	go func() { seen <- watchPlaces(ctx, t, s) }()
	var work sync.WaitGroup
	for i, n := range nodes {
		work.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(i)))
			for range 80 {
				n.disturb(rnd, i, names)
			}
		})
	}
	work.Wait()
	for _, n := range nodes {
		n.way.partition(false)
	}
	for _, n := range nodes {
		for deadline, why := time.Now().Add(time.Minute), "?"; why != ""; time.Sleep(2 * time.Millisecond) {
			for _, other := range nodes {
				other.plane.tidy()
			}
			if why = n.differs(s); why == "" {
				why = misplaced(nodes, s)
			}
			if time.Now().After(deadline) {
				t.Fatalf("not as the store says, after a minute: %s", why)
			}
		}
	}
	for _, problem := range strays(s) {
		t.Error(problem)
	}
	cancel()
	if n := <-seen; n == 0 {
		t.Error("nothing moved")
	}
}

// misplaced names a NIC that is open on two hosts, or elsewhere than the store says; "" if there is none. A plane that
// learns of others' changes during its clean-up repeats it.
func misplaced(nodes []*node, s *store.Memory) string {
	open := make(map[tenant.Key]string)
	for _, n := range nodes {
		n.provisioner.mu.Lock()
		used := slices.Collect(maps.Keys(n.provisioner.used))
		n.provisioner.mu.Unlock()
		for _, k := range used {
			if open[k] != "" {
				return fmt.Sprintf("%v is open on %s and on %s", k, open[k], n.plane.cfg.Host)
			}
			open[k] = n.plane.cfg.Host
		}
	}
	whole, err := load(s, &tenant.World{})
	if err != nil {
		return err.Error()
	}
	for k, at := range whole.placements {
		if at.Open != (open[k] != "") || at.Open && at.Host != open[k] {
			return fmt.Sprintf("the store says of %v that it is %+v, it is open on %q", k, at, open[k])
		}
	}
	return ""
}

// watchPlaces follows all writes until ctx ends, and returns how often a NIC moved to another host.
func watchPlaces(ctx context.Context, t *testing.T, s *store.Memory) (moves int) {
	pin, at := make(map[string]string), make(map[string]placement)
	w := s.Watch("", 1)
	for {
		b, err := w.Next(ctx)
		if err != nil {
			return moves
		}
		for _, c := range b.Changes {
			name := c.Key[strings.IndexByte(c.Key, '/')+1:]
			switch {
			case strings.HasPrefix(c.Key, "spec/nic/"):
				name = strings.TrimPrefix(name, "nic/")
				if pin[name] = "?"; c.Deleted {
					continue
				}
				if o, err := decode(store.Entry{Key: c.Key, Value: c.Value}); err == nil {
					pin[name] = o.(*tenant.NIC).Spec.Host
				}
				if before := at[name]; before.Open { // another plane may have decided that it moves
					before.Open = false
					at[name] = before
				}
			case strings.HasPrefix(c.Key, prefixPlace) && c.Deleted:
				delete(at, name)
			case strings.HasPrefix(c.Key, prefixPlace):
				before := at[name]
				var now placement
				if err := json.Unmarshal(c.Value, &now); err != nil {
					t.Errorf("%s: %v", c.Key, err)
				}
				moved := before.Host != now.Host
				if moved {
					moves++
				}
				if moved && before.Open && pin[name] == "" {
					t.Errorf("%s was open on %s and is on %s", name, before.Host, now.Host)
				}
				if want := before.Generation; moved && now.Generation != want+1 || !moved && now.Generation != want {
					t.Errorf("%s: after %+v came %+v", name, before, now)
				}
				at[name] = now
			}
		}
	}
}

// disturb causes a random disturbance. Only plane 0 is restarted, alone.
func (n *node) disturb(rnd *rand.Rand, number int, names []string) {
	k := nicKey("red", fmt.Sprintf("n%d", rnd.IntN(6)))
	host := append(slices.Clone(names), "anywhere", "anywhere")[rnd.IntN(5)]
	change := func(c tenant.Change) { n.plane.Change(tenant.Caller{Operator: true}, events.Actor{}, c, false) }
	put := func(text string) {
		objects, err := Parse(file(text))
		if err != nil {
			n.t.Error(err)
		}
		change(tenant.Change{Put: objects, Force: rnd.IntN(4) == 0})
	}
	switch rnd.IntN(12) {
	case 0, 1, 2:
		put("apiVersion: vrdma.io/v1\nkind: NIC\nmetadata: {name: " + k.Name + ", tenant: red}\nspec: {network: train, host: " + host + "}\n")
	case 3:
		change(tenant.Change{Delete: []tenant.Key{k}, Force: rnd.IntN(4) == 0})
	case 4, 5, 6:
		n.open(k)
	case 7:
		n.end(k)
	case 8:
		n.way.partition(n.way.broken() == nil)
	case 9: // a network with a NIC in it comes and goes
		net := tenant.Key{Kind: tenant.KindNetwork, Tenant: "red", Name: "other"}
		if rnd.IntN(2) == 0 {
			put("apiVersion: vrdma.io/v1\nkind: Network\nmetadata: {name: other, tenant: red}\nspec: {subnets: [10.2.0.0/24]}\n---\n" +
				"apiVersion: vrdma.io/v1\nkind: NIC\nmetadata: {name: o, tenant: red}\nspec: {network: other, host: " + host + "}\n")
		} else {
			change(tenant.Change{Delete: []tenant.Key{net}, Force: true})
		}
	case 10:
		put(fmt.Sprintf("apiVersion: vrdma.io/v1\nkind: Policy\nmetadata: {name: p, tenant: red}\nspec: {deny: [{direction: in, service: {space: tcp, ports: [%d]}}]}\n", 1+rnd.IntN(1000)))
	case 11:
		if number == 0 {
			n.again(names[number], number+1)
		}
	}
}

// again restarts the plane like a killed daemon, whose programs have ended.
func (n *node) again(name string, number int) {
	n.plane.Close()
	n.provisioner = newFakeProvisioner()
	n.restart(config(n.way, n.provisioner, name, number))
}

// differs returns how a node differs from the store; "" if it does not.
func (n *node) differs(s *store.Memory) string {
	whole, err := load(s, &tenant.World{})
	if err != nil || len(whole.problems) > 0 {
		return fmt.Sprint(err, whole.problems)
	}
	want := worldText(n.t, whole.world)
	n.provisioner.mu.Lock()
	enforced := n.provisioner.enforced
	n.provisioner.mu.Unlock()
	self := n.plane.cfg.Host
	var here []string
	for _, o := range whole.world.Objects(tenant.KindNIC) {
		if h := o.(*tenant.NIC).Spec.Host; h == "" || h == self {
			here = append(here, o.Key().Path())
		}
	}
	slices.Sort(here)
	switch {
	case n.plane.Fenced() != "":
		return self + ": " + n.plane.Fenced()
	case worldText(n.t, n.plane.World()) != want:
		return self + " has another world"
	case enforced == nil || worldText(n.t, enforced) != want:
		return self + " enforces another world"
	case !slices.Equal(n.provisioner.has(), here):
		return fmt.Sprintf("%s has %v, want %v", self, n.provisioner.has(), here)
	case !maps.Equal(n.plane.snapshots.now.Load().placements, whole.placements):
		return fmt.Sprintf("%s has placements %v, want %v", self, n.plane.snapshots.now.Load().placements, whole.placements)
	case !n.agrees(s):
		return self + " has another map"
	}
	return ""
}

// strays returns allocations without an owner, missing ones, and placements of missing NICs.
func strays(s *store.Memory) (problems []string) {
	whole, err := load(s, &tenant.World{})
	if err != nil {
		return []string{err.Error()}
	}
	want := make(map[string]string)
	places := make(map[string]bool)
	for _, o := range whole.world.Objects("") {
		maps.Copy(want, allocations(o))
		if n, is := o.(*tenant.NIC); is {
			places[placementKey(n)] = true
		}
	}
	list, _, _ := s.List("")
	for _, e := range list {
		switch {
		case strings.HasPrefix(e.Key, "alloc/"):
			var a allocation
			if json.Unmarshal(e.Value, &a); want[e.Key] != a.To {
				problems = append(problems, fmt.Sprintf("%s is of %q, want %q", e.Key, a.To, want[e.Key]))
			}
			delete(want, e.Key)
		case strings.HasPrefix(e.Key, prefixPlace) && !places[e.Key]:
			problems = append(problems, e.Key+" is the placement of no NIC")
		}
	}
	for key, to := range want {
		problems = append(problems, fmt.Sprintf("%s of %s is missing", key, to))
	}
	return problems
}
