package networks

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/tenancy/control"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
	"vrdma.dev/vrdma/test/etcdtest"
	"vrdma.dev/vrdma/test/harness"
)

// A changer changes the declared objects of one host at random. Some objects are its own: it knows which values the
// store may have for them.
type changer struct {
	h     *host
	rnd   *rand.Rand
	names []string // of all hosts
	// own has, for each of its NICs, the possible values: the last confirmed one and those tried since. "" means that
	// the NIC does not exist.
	own                map[string]map[string]bool
	confirmed, refused int
}

// tenantName is the tenant of the changer's own objects.
func (c *changer) tenantName() string { return "own-" + c.h.name }

// begin declares the objects that the changer works with.
func (c *changer) begin(t *testing.T) {
	c.h.declare(t, object("Tenant", "name: "+c.tenantName(), "")+object("Network", "name: net, tenant: "+c.tenantName(), "subnets: [10.2.0.0/24]"))
}

// change makes a random change. It may fail while the store is away.
func (c *changer) change(n int) {
	host := append([]string{"anywhere"}, c.names...)[c.rnd.IntN(len(c.names)+1)]
	var err error
	switch c.rnd.IntN(8) {
	case 0, 1, 2: // its own
		name, value := fmt.Sprintf("n%d", c.rnd.IntN(4)), fmt.Sprint(n)
		c.try(name, value, func() error {
			return c.apply(object("NIC", fmt.Sprintf("name: %s, tenant: %s, labels: {v: \"%s\"}", name, c.tenantName(), value), "network: net, host: "+host))
		})
		return
	case 3:
		name := fmt.Sprintf("n%d", c.rnd.IntN(4))
		c.try(name, "", func() error {
			_, err := control.Delete(c.h.Socket, []tenant.Key{{Kind: tenant.KindNIC, Tenant: c.tenantName(), Name: name}}, true, false)
			return err
		})
		return
	case 4, 5: // everybody's: a NIC that moves
		err = c.apply(object("NIC", fmt.Sprintf("name: moves%d, tenant: red", c.rnd.IntN(4)), "network: train, host: "+host))
	case 6: // a network with all that is in it comes and goes
		if name := fmt.Sprintf("net%d", c.rnd.IntN(2)); c.rnd.IntN(2) == 0 {
			err = c.apply(object("Network", "name: "+name+", tenant: red", "subnets: [10.3.0.0/24]") + object("NIC", "name: of-"+name+", tenant: red", "network: "+name+", host: "+host))
		} else {
			_, err = control.Delete(c.h.Socket, []tenant.Key{{Kind: tenant.KindNetwork, Tenant: "red", Name: name}}, true, false)
		}
	case 7:
		err = c.apply(object("Policy", "name: p, tenant: red", fmt.Sprintf("nics: {names: [moves0]}, deny: [{direction: in, service: {space: tcp, ports: [%d]}}]", 1+n%60000)))
	}
	c.count(err)
}

func (c *changer) apply(text string) error {
	_, err := control.ApplyForced(c.h.Socket, []control.File{{Name: "changer", Text: text}}, false)
	return err
}

func (c *changer) count(err error) {
	if err == nil {
		c.confirmed++
	} else {
		c.refused++
	}
}

// try changes an object of its own. After a failure it is unknown whether the change was made.
func (c *changer) try(name, value string, f func() error) {
	if c.own[name] == nil {
		c.own[name] = map[string]bool{"": true}
	}
	err := f()
	c.count(err)
	switch {
	case err == nil:
		c.own[name] = map[string]bool{value: true}
	case value == "" && strings.Contains(err.Error(), "does not exist"):
	default:
		c.own[name][value] = true
	}
}

// upset disturbs the store, or a host's connection to it, for a while.
func (w *lab) upset(t *testing.T, rnd *rand.Rand, daemons bool) {
	m, h := w.etcd.Members[rnd.IntN(len(w.etcd.Members))], w.hosts[rnd.IntN(len(w.hosts))]
	wait := func() { time.Sleep(time.Duration(rnd.Int64N(int64(1500 * time.Millisecond)))) }
	kinds := 6
	if daemons {
		kinds++
	}
	switch rnd.IntN(kinds) {
	case 0:
		m.Kill()
		wait()
		m.Start()
	case 1:
		m.Pause()
		wait()
		m.Resume()
	case 2: // all clients are cut off from it, and not told
		m.Cut(true)
		wait()
		m.Cut(false)
	case 3: // no majority
		other := w.etcd.Members[rnd.IntN(len(w.etcd.Members))]
		m.Kill()
		other.Kill()
		wait()
		m.Start()
		other.Start()
	case 4: // a host is cut off from all of it
		h.way.set(true)
		wait()
		h.way.set(false)
	case 5: // or from one member
		one := h.way[rnd.IntN(len(h.way))]
		one.set(true)
		wait()
		one.set(false)
	case 6:
		syscall.Kill(h.PID(), syscall.SIGKILL)
		h.Process.Ended(minute)
		wait()
		h.restart(t)
	}
	wait()
}

// inStore returns the objects in etcd as etcdctl prints them: by name, in JSON.
func (w *lab) inStore(t *testing.T) map[string]string {
	t.Helper()
	out := make(map[string]string)
	lines := strings.Split(strings.TrimSpace(w.etcd.Ctl("get", "--prefix", etcdtest.Prefix+"spec/")), "\n")
	for i := 1; i < len(lines); i += 2 {
		out[text(t, []byte(lines[i]))] = lines[i-1]
	}
	return out
}

// text returns an object in a form that can be compared.
func text(t *testing.T, value []byte) string {
	t.Helper()
	o, err := tenant.Unmarshal(value)
	if err != nil {
		t.Fatalf("%v in %s", err, value)
	}
	b, err := tenant.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// differs returns how a host's objects differ from the store's; "" if they do not.
func (h *host) differs(t *testing.T, want map[string]string) string {
	reply, err := control.Get(h.Socket, control.Selection{})
	if err != nil {
		return err.Error()
	}
	have := make(map[string]bool)
	for _, it := range reply.Items {
		if it.Key.Kind == tenant.KindHost {
			continue // written by daemons
		}
		s := text(t, it.Object)
		if have[s] = true; want[s] == "" {
			return fmt.Sprintf("it has %s, which the store has not", s)
		}
		o, _ := tenant.Unmarshal(it.Object)
		if n, is := o.(*tenant.NIC); is {
			state := it.Status.State
			if here := n.Spec.Host == "" || n.Spec.Host == h.name; here && state != control.Ready && it.Status.Host == h.name || !here && state != control.Elsewhere {
				return fmt.Sprintf("%v of host %q is %+v", n.Key(), n.Spec.Host, it.Status)
			}
		}
	}
	for s, key := range want {
		if !have[s] {
			return fmt.Sprintf("it has no %s: %s", key, s)
		}
	}
	return ""
}

// TestChaos: three hosts use three etcd members, which are killed, stopped and cut off at random, from all hosts or
// from one. Meanwhile all hosts change declared objects, and a connection between two hosts goes on. Afterwards every
// daemon has what etcd has, no confirmed change is lost, and every host reaches every other one. The long form also
// kills daemons, for two minutes.
func TestChaos(t *testing.T) {
	t.Parallel()
	w := newLabOf(t, 3, 3)
	w.a.declare(t, threeHosts()+object("NIC", "name: s, tenant: blue", "network: train, address: 10.1.0.20, host: b")+object("NIC", "name: c2, tenant: blue", "network: train, address: 10.1.0.21, host: a"))
	names := []string{"a", "b", "c"}
	var changers []*changer
	for i, h := range w.hosts {
		h.ready(t, "red/"+h.name)
		c := &changer{h: h, rnd: rand.New(rand.NewPCG(uint64(i), 11)), names: names, own: make(map[string]map[string]bool)}
		c.begin(t)
		changers = append(changers, c)
	}
	w.a.ready(t, "blue/c2")
	w.b.ready(t, "blue/s")
	server := w.b.serve(t, "blue/s", "10.1.0.20")
	client := w.a.program(t, "blue/c2", "rping", "-c", "-a", "10.1.0.20", "-v")
	client.Printed(t, "ping data", minute)

	span := harness.Pick(10*time.Second, 2*time.Minute)
	ctx, cancel := context.WithTimeout(t.Context(), span)
	defer cancel()
	late := time.Now().Add(span + minute) // on a busy machine a host may have none confirmed yet
	var work sync.WaitGroup
	for _, c := range changers {
		work.Go(func() {
			for n := 1; ctx.Err() == nil || c.confirmed == 0 && time.Now().Before(late); n++ {
				c.change(n)
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
	rnd := rand.New(rand.NewPCG(3, 14))
	for n := 0; ctx.Err() == nil; n++ {
		w.upset(t, rnd, harness.All())
	}
	work.Wait()
	for _, c := range changers {
		t.Logf("host %s: %d changes were made, %d not", c.h.name, c.confirmed, c.refused)
		if c.confirmed == 0 || c.h.Process.Ended(0) {
			t.Errorf("host %s: %s", c.h.name, c.h.Process.Fate())
		}
	}

	w.etcd.Ready()
	var want map[string]string
	for _, h := range w.hosts {
		why := ""
		if !harness.Poll(minute, func() bool {
			want = w.inStore(t) // an unconfirmed change may still arrive
			why = h.differs(t, want)
			return why == ""
		}) {
			t.Errorf("host %s does not agree with the store: %s", h.name, why)
		}
	}
	for _, c := range changers {
		for name, allowed := range c.own {
			key := etcdtest.Prefix + "spec/nic/" + c.tenantName() + "/net/" + name
			value := ""
			for s, k := range want {
				if k == key {
					o, _ := tenant.Unmarshal([]byte(s))
					value = o.(*tenant.NIC).Metadata.Labels["v"]
				}
			}
			if !allowed[value] {
				t.Errorf("%s has value %q in the store, it may be %v", key, value, allowed)
			}
		}
	}
	if !harness.All() && (server.Ended(0) || client.Ended(0)) {
		t.Errorf("a connection did not survive: %s, %s\n%s", server.Fate(), client.Fate(), client.Output())
	}
	for i, from := range w.hosts {
		to := w.hosts[(i+1)%len(w.hosts)]
		ip := "10.1.0." + string(to.name[0]-'a'+'1')
		p := to.serve(t, "red/"+to.name, ip, "-C", "3")
		from.program(t, "red/"+from.name, "rping", "-c", "-a", ip, "-C", "3").OK(t, minute)
		p.OK(t, minute)
	}
}
