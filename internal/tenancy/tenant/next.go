package tenant

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
)

// Next returns the World after a change, and the effect on each object. Objects that others refer to come first. Next
// allocates the VNIs and addresses that are not given. The error is Errors, with all errors of the change.
func (w *World) Next(c Change, rnd Rand) (*World, []Effect, error) {
	b := begin(w, rnd)
	for _, o := range c.Put {
		b.admit(o)
	}
	b.delete(c)
	b.put()
	if len(b.errs) > 0 {
		return nil, nil, b.errs
	}
	return b.next, b.effects(), nil
}

// NewWorld returns a World of objects that were part of one before, for instance those of a store. They have their
// allocated addresses and VNIs. Invalid objects are left out and reported as Errors; the World is valid without them.
func NewWorld(objects []Object) (*World, error) {
	b := begin(&World{}, nil)
	b.kept = true
	for _, o := range objects {
		b.admit(o)
	}
	b.put()
	for _, s := range b.next.networks {
		s.resume()
	}
	return b.next, b.errs.err()
}

// Follow returns the World after another daemon has changed the store: objects put, with their allocated addresses and
// VNIs, and objects deleted. It returns an error if the change cannot be applied to this World. Then the whole store has
// to be read, with NewWorld.
func (w *World) Follow(put []Object, gone []Key) (*World, []Effect, error) {
	b := begin(w, nil)
	b.kept = true
	for _, o := range put {
		b.admit(o)
	}
	for _, k := range gone {
		if w.objects[k] != nil && b.byKey[k] == nil {
			b.deleted[k] = true
		}
	}
	for k := range b.deleted {
		for _, by := range b.old.Belongings(k) {
			if !b.deleted[by] {
				b.errs = append(b.errs, &Error{Key: by, Text: fmt.Sprintf("%s is gone, and it is not", k)})
			}
		}
		b.remove(k)
	}
	b.put()
	if len(b.errs) > 0 {
		return nil, nil, b.errs
	}
	return b.next, b.effects(), nil
}

// A builder makes the next World. It processes the objects that change and those that refer to them. It takes all
// others from the old World.
type builder struct {
	old, next *World
	rnd       Rand
	puts      []*put // by rank, those of a kind in the order of the change
	byKey     map[Key]*put
	deleted   map[Key]bool
	cloned    map[any]bool // households and segments of next that are not old's
	kept      bool         // objects of a store: leave out what is wrong, allocate nothing
	errs      Errors
}

// A put is an object that a builder adds to the next World.
type put struct {
	given Object // the object of the change
	made  Object // the copy that becomes part of the World
	old   Object // the object that it replaces; nil if there is none
	bad   bool
}

func begin(w *World, rnd Rand) *builder {
	return &builder{
		old: w, rnd: rnd,
		next: &World{
			objects: cloned(w.objects), tenants: cloned(w.tenants), networks: cloned(w.networks), vnis: cloned(w.vnis),
		},
		byKey: map[Key]*put{}, deleted: map[Key]bool{}, cloned: map[any]bool{},
	}
}

// cloned returns a copy of m; never nil.
func cloned[K comparable, V any](m map[K]V) map[K]V {
	if m == nil {
		return map[K]V{}
	}
	return maps.Clone(m)
}

// wrong adds an error about an object of the change.
func (b *builder) wrong(p *put, field, format string, args ...any) {
	p.bad = true
	e := &Error{Key: p.given.Key(), Field: field, Text: fmt.Sprintf(format, args...)}
	p.given.Meta().from.locate(e)
	b.errs = append(b.errs, e)
}

// admit adds an object to the change if it is valid by itself.
func (b *builder) admit(o Object) {
	key := o.Key()
	p := &put{given: o}
	if before, found := b.byKey[key]; found {
		b.errs = append(b.errs, twice(before.given, o))
		return
	}
	b.byKey[key] = p
	if errs := check(o); errs != nil {
		b.errs = append(b.errs, errs...)
		p.bad = true
		return
	}
	old := b.old.objects[key]
	p.old, p.made = old, normal(o)
	b.puts = append(b.puts, p)
}

// absent reports whether there is no object with a key. complain is false if the change has an invalid object with that
// key, because its error is reported already.
func (b *builder) absent(p *put, k Key) (absent, complain bool) {
	if b.next.objects[k] != nil {
		return false, false
	}
	by := b.byKey[k]
	p.bad = true
	return true, by == nil || !by.bad
}

// normal returns a copy of an object in the form of a World: without the lines of a file, all addresses in Addresses, and
// "" instead of the host "anywhere".
func normal(o Object) Object {
	var made Object
	switch o := o.(type) {
	case *Tenant:
		copied := *o
		made = &copied
	case *Network:
		copied := *o
		made = &copied
	case *NIC:
		copied := *o
		copied.Spec.Addresses = slices.Clone(o.Spec.addresses())
		slices.SortFunc(copied.Spec.Addresses, netip.Addr.Compare)
		copied.Spec.Address = netip.Addr{}
		if copied.Spec.Host == "anywhere" {
			copied.Spec.Host = ""
		}
		made = &copied
	case *Policy:
		copied := *o
		made = &copied
	case *Fault:
		copied := *o
		made = &copied
	case *Host:
		made = normalHost(o)
	}
	made.Meta().from = source{}
	return made
}

// delete removes objects from the next World, and with Force the objects that refer to them.
func (b *builder) delete(c Change) {
	fail := func(k Key, format string, args ...any) {
		b.errs = append(b.errs, &Error{Key: k, Text: fmt.Sprintf(format, args...)})
	}
	for _, k := range c.Delete {
		switch {
		case b.old.objects[k] == nil:
			fail(k, "there is none: vrdma get %s lists those that there are", strings.ToLower(string(k.Kind)))
		case b.byKey[k] != nil:
			fail(k, "is to be put and to be deleted: do one after the other")
		default:
			b.deleted[k] = true
		}
	}
	if c.Force {
		for _, k := range c.Delete {
			for _, by := range b.old.Belongings(k) {
				if b.byKey[by] == nil { // else it is checked as any other that is put
					b.deleted[by] = true
				}
			}
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(b.deleted), Key.Compare) {
		users := b.old.Belongings(k)
		if k.Kind == KindNIC && !c.Force {
			users = b.old.policiesNaming(k)
		}
		users = slices.DeleteFunc(users, func(by Key) bool { return b.deleted[by] || b.byKey[by] != nil })
		if len(users) > 0 {
			fail(k, "is used by %s: delete or change them first, or use --force%s", keyList(users), forceMeans(k.Kind))
		}
	}
	for k := range b.deleted {
		b.remove(k)
	}
}

// forceMeans describes what --force does to objects that use a deleted object of this kind.
func forceMeans(kind Kind) string {
	if kind == KindNIC {
		return ", which leaves them as they are: the name stands for no NIC then"
	}
	return " to delete them, too"
}

// keyList returns the names of the first few keys, for a message.
func keyList(keys []Key) string {
	const most = 5
	names := make([]string, 0, most+1)
	for _, k := range keys[:min(most, len(keys))] {
		names = append(names, k.String())
	}
	if len(keys) > most {
		names = append(names, fmt.Sprintf("%d more", len(keys)-most))
	}
	return strings.Join(names, ", ")
}

// Belongings returns the objects that cannot exist without a tenant, a network or a declared host.
func (w *World) Belongings(k Key) (list []Key) {
	switch k.Kind {
	case KindTenant:
		for _, kind := range []Kind{KindNetwork, KindNIC, KindPolicy, KindFault} {
			for name := range w.tenants[k.Name].names(kind) {
				list = append(list, Key{kind, k.Name, name})
			}
		}
	case KindNetwork:
		if s := w.networks[k]; s != nil {
			for name := range s.nics {
				list = append(list, Key{KindNIC, k.Tenant, name})
			}
		}
		for name := range w.tenants[k.Tenant].names(KindPolicy) {
			by := Key{KindPolicy, k.Tenant, name}
			if w.objects[by].(*Policy).Spec.NICs.Network == k.Name {
				list = append(list, by)
			}
		}
	case KindHost:
		list = w.nicsOn(k.Name)
	}
	slices.SortFunc(list, Key.Compare)
	return list
}

// policiesNaming returns the policies that name a NIC.
func (w *World) policiesNaming(nic Key) (list []Key) {
	for name := range w.tenants[nic.Tenant].names(KindPolicy) {
		k := Key{KindPolicy, nic.Tenant, name}
		if w.objects[k].(*Policy).Spec.names(nic.Name) {
			list = append(list, k)
		}
	}
	slices.SortFunc(list, Key.Compare)
	return list
}

func (s *PolicySpec) names(nic string) bool {
	has := func(r Rule) bool { return r.Peer.NIC == nic }
	return slices.Contains(s.NICs.Names, nic) || slices.ContainsFunc(s.Allow, has) || slices.ContainsFunc(s.Deny, has)
}

// put adds the objects to the next World, each kind after those that it refers to.
func (b *builder) put() {
	slices.SortStableFunc(b.puts, func(p, q *put) int {
		return cmp.Compare(rank[p.given.Key().Kind], rank[q.given.Key().Kind])
	})
	b.each(func(p *put, o *Tenant) { b.insert(p) })
	b.each(b.putHost)
	b.each(b.putNetwork)
	b.each(b.allocateVNI)
	b.each(b.putNIC)
	b.each(b.allocateAddresses)
	b.outsiders()
	b.each(b.putPolicy)
	b.each(b.putFault)
	b.sums()
}

// each calls f, which takes objects of one kind, for the puts without errors so far.
func (b *builder) each(f any) {
	for _, p := range b.puts {
		if p.bad {
			continue
		}
		switch f := f.(type) {
		case func(*put, *Tenant):
			call(p, f)
		case func(*put, *Network):
			call(p, f)
		case func(*put, *NIC):
			call(p, f)
		case func(*put, *Policy):
			call(p, f)
		case func(*put, *Fault):
			call(p, f)
		case func(*put, *Host):
			call(p, f)
		}
	}
}

func call[T Object](p *put, f func(*put, T)) {
	if o, is := p.made.(T); is {
		f(p, o)
	}
}

// effects returns the effect of the change on each of its objects.
func (b *builder) effects() []Effect {
	var list []Effect
	for k := range b.deleted {
		list = append(list, Effect{Key: k, Old: b.old.objects[k]})
	}
	for _, p := range b.puts {
		k := p.given.Key()
		if p.old != nil && reflect.DeepEqual(p.old, p.made) {
			b.next.objects[k] = p.old
		}
		list = append(list, Effect{Key: k, Old: p.old, New: b.next.objects[k]})
	}
	slices.SortFunc(list, func(x, y Effect) int { return x.Key.Compare(y.Key) })
	return list
}
