package control

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"vrdma.dev/vrdma/internal/events"
	"vrdma.dev/vrdma/internal/tenancy/store"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// A host that runs vrdma is written by its daemon, below host/ and for good. That the daemon lives
// is below live/, which expires: others then show the host as gone, and nothing else happens. Its
// NICs stay where they are.
//
// A host's name belongs to one daemon. Which one is known by its identity, which is that of the
// machine and of the daemon's socket, and stays; and by its boot, which is new whenever it starts.
// Who finds another boot under its name has been replaced: it is fenced, and serves no declared NIC
// any more.

// lifeTime is how long a host is shown as alive after its daemon was last heard of. A restart of
// the daemon or of the store must not look like death.
const lifeTime = 30 * time.Second

// registered is a host that runs vrdma, as its daemon wrote it.
type registered struct {
	host           *tenant.Host
	boot, identity string
	revision       int64
}

// hostHeader is what stands before the object.
type hostHeader struct {
	Schema   int    `json:"schema"`
	Boot     string `json:"boot"`
	Identity string `json:"identity"`
}

func encodeHost(o *tenant.Host, boot, identity string) ([]byte, error) {
	head, err := json.Marshal(hostHeader{store.Schema, boot, identity})
	if err != nil {
		return nil, err
	}
	text, err := tenant.Marshal(o)
	if err != nil {
		return nil, err
	}
	return slices.Concat(head[:len(head)-1], []byte(","), text[1:]), nil
}

// decodeHost reads an entry below host/. Nothing is believed.
func decodeHost(e store.Entry) (*registered, error) {
	var head hostHeader
	if err := readValue(e, &head, &head.Schema); err != nil {
		return nil, err
	}
	o, err := tenant.Unmarshal(e.Value)
	if err != nil {
		return nil, fmt.Errorf("store entry %.200q: %w", e.Key, err)
	}
	h, is := o.(*tenant.Host)
	switch {
	case !is || prefixHost+h.Metadata.Name != e.Key:
		return nil, fmt.Errorf("store entry %.200q is the object of %.200q", e.Key, o.Key().String())
	case h.Linux():
		return nil, fmt.Errorf("store entry %.200q is a host that no daemon has written", e.Key)
	}
	if err := h.Check(); err != nil {
		return nil, fmt.Errorf("store entry %.200q: %w", e.Key, err)
	}
	return &registered{h, head.Boot, head.Identity, e.Revision}, nil
}

// self is this host, as it is registered.
func (p *Plane) self() *tenant.Host {
	return &tenant.Host{Metadata: tenant.Metadata{Name: p.cfg.Host}, Spec: p.Self()}
}

// Self is this host as others reach it.
func (p *Plane) Self() tenant.HostSpec { return *p.spec.Load() }

// Announce tells others that they reach this host in another way. If that cannot be written down
// nothing has changed.
func (p *Plane) Announce(spec tenant.HostSpec) error {
	p.changing.Lock()
	defer p.changing.Unlock()
	if p.shared() {
		if why := cmp.Or(p.Fenced(), p.alarm(), p.away()); why != "" {
			return errors.New(why)
		}
	}
	old := p.spec.Swap(&spec)
	if p.shared() {
		if err := p.registerAnew(); err != nil {
			p.spec.Store(old)
			return err
		}
	}
	p.updateMap()
	return nil
}

// registerAnew writes this host again. changing is held.
func (p *Plane) registerAnew() (err error) {
	for range mostTries {
		if err = p.register(); !errors.Is(err, errConflict) {
			return err
		}
		if err := p.refresh(); err != nil {
			return err
		}
	}
	return err
}

// register writes this host, if nobody else has its name.
func (p *Plane) register() error {
	p.registering.Lock()
	defer p.registering.Unlock()
	s := p.now.Load()
	if s.world.Host(p.cfg.Host) != nil {
		return fmt.Errorf("host %s is declared with type linux: delete it, or choose another name with --host-name", p.cfg.Host)
	}
	self := p.self()
	if err := self.Check(); err != nil {
		return err
	}
	old := s.hosts[p.cfg.Host]
	if old != nil && old.identity != p.cfg.Identity && s.live[p.cfg.Host] != "" {
		return fmt.Errorf("host %s is another daemon's, at %s, which is alive: choose another name with --host-name", p.cfg.Host, addressesText(old.host))
	}
	value, err := encodeHost(self, p.boot, p.cfg.Identity)
	if err != nil {
		return err
	}
	key, last := prefixHost+p.cfg.Host, int64(0)
	if old != nil {
		last = old.revision
	}
	err = p.write(s, []store.Condition{{Key: key, Revision: last}}, []store.Write{{Key: key, Value: value}}, func(s *snapshot, revision int64) {
		s.register(p.cfg.Host, &registered{self, p.boot, p.cfg.Identity, revision})
		p.registeredAt.Store(revision)
	})
	if err != nil {
		return err
	}
	p.registered.Store(true)
	if remote, is := p.cfg.Store.(store.Remote); is && p.release == nil {
		p.release = remote.Alive(prefixLive+p.cfg.Host, []byte(p.boot), lifeTime)
	}
	return nil
}

// register makes a host known.
func (s *snapshot) register(name string, r *registered) {
	s.hosts = maps.Clone(s.hosts)
	s.hosts[name] = r
}

// registerFirst is register when the plane opens: others may be writing, too.
func (p *Plane) registerFirst() error {
	for range mostTries {
		err := p.register()
		if !errors.Is(err, errConflict) {
			return err
		}
		snap, err := load(p.cfg.Store, p.World())
		if err != nil {
			return err
		}
		p.amend(func(s *snapshot) { *s = *snap })
	}
	return errConflict
}

func addressesText(h *tenant.Host) string {
	var texts []string
	for _, a := range h.Spec.Addresses {
		texts = append(texts, a.String())
	}
	return strings.Join(texts, ", ")
}

// fence looks whether another daemon has taken this host's name. It reports whether it has just
// been found out. An entry that is older than this daemon's own is its predecessor's: a snapshot may
// have been read before this daemon registered.
func (p *Plane) fence(s *snapshot) bool {
	mine := s.hosts[p.cfg.Host]
	if !p.shared() || !p.registered.Load() || mine == nil || mine.boot == p.boot || mine.revision < p.registeredAt.Load() || p.fenced.Load() != nil {
		return false
	}
	why := fmt.Sprintf("another daemon, at %s, has taken the name %s of this host: this one serves no declared NIC any more; restart it with another --host-name, or stop the other one", addressesText(mine.host), p.cfg.Host)
	p.fenced.Store(&why)
	p.journal.Record(events.Event{Verb: events.Failed, Object: mine.host.Key(), Reason: why})
	return true
}

// Fenced says why this host serves no declared NIC; "" if it does.
func (p *Plane) Fenced() string {
	if why := p.fenced.Load(); why != nil {
		return *why
	}
	return ""
}

// registeredHosts are the hosts that run vrdma, by name. If the store is our own it is this one.
func (p *Plane) registeredHosts(s *snapshot) (list []*tenant.Host) {
	if !p.shared() {
		return []*tenant.Host{p.self()}
	}
	for _, r := range s.hosts {
		list = append(list, r.host)
	}
	slices.SortFunc(list, func(a, b *tenant.Host) int { return strings.Compare(a.Metadata.Name, b.Metadata.Name) })
	return list
}

// host finds a host, of ours or declared; nil if there is none.
func (p *Plane) host(s *snapshot, name string) *tenant.Host {
	switch {
	case s.world.Host(name) != nil:
		return s.world.Host(name)
	case !p.shared() && name == p.cfg.Host:
		return p.self()
	case p.shared() && s.hosts[name] != nil:
		return s.hosts[name].host
	}
	return nil
}

// find is an object of the world, or a host that runs vrdma.
func (p *Plane) find(s *snapshot, k tenant.Key) tenant.Object {
	if o := s.world.Get(k); o != nil || k.Kind != tenant.KindHost {
		return o
	}
	if h := p.host(s, k.Name); h != nil {
		return h
	}
	return nil
}

// objects are those of a kind, hosts that run vrdma among them. A host that is alone is told of if
// somebody asks for hosts.
func (p *Plane) objects(s *snapshot, kind tenant.Kind) []tenant.Object {
	list := s.world.Objects(kind)
	if kind != tenant.KindHost && (kind != "" || !p.shared()) {
		return list
	}
	for _, h := range p.registeredHosts(s) {
		if s.world.Host(h.Metadata.Name) == nil {
			list = append(list, h)
		}
	}
	slices.SortFunc(list, func(a, b tenant.Object) int { return a.Key().Compare(b.Key()) })
	return list
}

// hostStatus is what is known of a host.
func (p *Plane) hostStatus(s *snapshot, h *tenant.Host) Status {
	name := h.Metadata.Name
	switch {
	case h.Linux():
		return Status{State: Unwatched, Reason: "it runs Linux and enforces nothing"}
	case name == p.cfg.Host && p.Fenced() != "":
		return Status{State: Failed, Reason: p.Fenced()}
	case name == p.cfg.Host:
		return Status{State: Ready, Alone: !p.shared()}
	case s.live[name] == "":
		return Status{State: Gone, Reason: "its daemon was not heard of for half a minute; its NICs stay where they are"}
	}
	return Status{State: Ready}
}

// forget is the end of hosts that run vrdma, which an operator deletes when they will not come
// back: their NICs can then be opened elsewhere. Where one was opened meanwhile, its host writes that
// down again. What is left of keys is for the world.
func (p *Plane) forget(s *snapshot, keys []tenant.Key) (rest []tenant.Key, gone []tenant.Effect, conditions []store.Condition, writes []store.Write, err error) {
	var errs tenant.Errors
	for _, k := range keys {
		r := s.hosts[k.Name]
		if k.Kind != tenant.KindHost || s.world.Get(k) != nil || r == nil || !p.shared() {
			rest = append(rest, k)
			continue
		}
		switch {
		case k.Name == p.cfg.Host:
			errs = append(errs, &tenant.Error{Key: k, Text: "is this host: ask the daemon of another one, after this one has been stopped"})
			continue
		case s.live[k.Name] != "":
			errs = append(errs, &tenant.Error{Key: k, Text: fmt.Sprintf("its daemon is alive: stop it first, and wait for %v", lifeTime)})
			continue
		}
		gone = append(gone, tenant.Effect{Key: k, Old: r.host})
		conditions = append(conditions, store.Condition{Key: prefixHost + k.Name, Revision: r.revision}, store.Condition{Key: prefixLive + k.Name})
		writes = append(writes, store.Write{Key: prefixHost + k.Name, Delete: true})
		for nic, at := range s.placements {
			if n := s.world.NIC(nic.Tenant, nic.Name); n != nil && at.Host == k.Name {
				writes = append(writes, store.Write{Key: placementKey(n), Delete: true})
			}
		}
	}
	if len(errs) > 0 {
		return nil, nil, nil, nil, errs
	}
	return rest, gone, conditions, writes, nil
}

// ours takes hosts that run vrdma out of what is to be put: vrdma get prints them, and what it
// prints can be applied.
func (p *Plane) ours(s *snapshot, objects []tenant.Object) (rest []tenant.Object, warnings []string, err error) {
	var errs tenant.Errors
	for _, o := range objects {
		h, is := o.(*tenant.Host)
		if !is || h.Linux() && s.hosts[h.Metadata.Name] == nil {
			rest = append(rest, o)
			continue
		}
		if h.Linux() {
			errs = append(errs, &tenant.Error{Key: h.Key(), Field: "metadata.name", Text: "is a host that runs vrdma: choose another name, or delete that host first"})
			continue
		}
		if p.host(s, h.Metadata.Name) == nil {
			rest = append(rest, o) // is refused, with advice
			continue
		}
		warnings = append(warnings, fmt.Sprintf("%v is written by its daemon: it is left as it is", h.Key()))
	}
	if len(errs) > 0 {
		return nil, nil, errs
	}
	return rest, warnings, nil
}
