package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"vrdma.dev/vrdma/internal/events"
	"vrdma.dev/vrdma/internal/tenancy/store"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// The daemon of a host writes the host's entry below host/, for good. The key below live/ says that the daemon lives,
// and expires. Other hosts then show the host as gone, and nothing else happens: its NICs stay where they are.
//
// A host's name belongs to one daemon. The identity, made of the machine and of the daemon's socket, identifies the
// daemon across restarts. The boot is new at every start. A daemon that finds another boot under its name has been
// replaced: it is fenced, and serves no declared NIC any more.

// lifeTime is how long a host is shown as alive after its last heartbeat. A restart of the daemon or of the store must
// not look like the end of the host.
const lifeTime = 30 * time.Second

// registered is the entry of a host that runs vrdma.
type registered struct {
	host           *tenant.Host
	boot, identity string
	revision       int64
}

// hostHeader is the part of an entry before the object.
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

// decodeHost reads an entry below host/ and checks all of it.
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

// A registration is this host's entry in a store that other hosts share.
type registration struct {
	cfg       *Config
	journal   *Journal
	snapshots *snapshots
	health    *storeHealth
	boot      string                          // of this daemon
	spec      atomic.Pointer[tenant.HostSpec] // of this host
	fenced    atomic.Pointer[string]          // why this host serves no declared NIC; nil: it does

	mu           sync.Mutex   // held while the entry is written
	registered   atomic.Bool  // the entry has been written
	registeredAt atomic.Int64 // the revision at which it was written last
	release      func()       // deletes the key that says that this daemon lives; set by register
}

// self is this host, as it is registered.
func (r *registration) self() *tenant.Host {
	return &tenant.Host{Metadata: tenant.Metadata{Name: r.cfg.Host}, Spec: r.announced()}
}

// announced is how other hosts reach this one.
func (r *registration) announced() tenant.HostSpec { return *r.spec.Load() }

// register writes this host's entry, unless another daemon has its name.
func (r *registration) register() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.snapshots.now.Load()
	if s.world.Host(r.cfg.Host) != nil {
		return fmt.Errorf("host %s is declared with type linux: delete it, or choose another name with --host-name", r.cfg.Host)
	}
	self := r.self()
	if err := self.Check(); err != nil {
		return err
	}
	old := s.hosts[r.cfg.Host]
	if old != nil && old.identity != r.cfg.Identity && s.live[r.cfg.Host] != "" {
		return fmt.Errorf("host %s belongs to another daemon, at %s, which is alive: choose another name with --host-name", r.cfg.Host, addressesText(old.host))
	}
	value, err := encodeHost(self, r.boot, r.cfg.Identity)
	if err != nil {
		return err
	}
	key, last := prefixHost+r.cfg.Host, int64(0)
	if old != nil {
		last = old.revision
	}
	err = r.snapshots.write(s, []store.Condition{{Key: key, Revision: last}}, []store.Write{{Key: key, Value: value}}, func(s *snapshot, revision int64) {
		s.register(r.cfg.Host, &registered{self, r.boot, r.cfg.Identity, revision})
		r.registeredAt.Store(revision)
	})
	if err != nil {
		return err
	}
	r.registered.Store(true)
	r.keepAlive()
	return nil
}

// register adds a host.
func (s *snapshot) register(name string, r *registered) {
	s.hosts = maps.Clone(s.hosts)
	s.hosts[name] = r
}

// registerFirst is register when the plane opens: other daemons may be writing, too.
func (r *registration) registerFirst() error {
	for range mostTries {
		err := r.register()
		if !errors.Is(err, errConflict) {
			return err
		}
		snap, err := load(r.cfg.Store, r.snapshots.now.Load().world)
		if err != nil {
			return err
		}
		r.snapshots.amend(func(s *snapshot) { *s = *snap })
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

// check reports whether it has just found that another daemon has taken this host's name. An entry older than this
// daemon's own is its predecessor's: a snapshot may have been read before this daemon registered.
func (r *registration) check(s *snapshot) bool {
	mine := s.hosts[r.cfg.Host]
	if !r.health.shared() || !r.registered.Load() || mine == nil || mine.boot == r.boot || mine.revision < r.registeredAt.Load() || r.fenced.Load() != nil {
		return false
	}
	why := fmt.Sprintf("another daemon, at %s, has taken the name %s of this host: this one serves no declared NIC any more; restart it with another --host-name, or stop the other one", addressesText(mine.host), r.cfg.Host)
	r.fenced.Store(&why)
	r.journal.Record(events.Event{Verb: events.Failed, Object: mine.host.Key(), Reason: why})
	return true
}

// reason is why this host serves no declared NIC; "": it does.
func (r *registration) reason() string {
	if why := r.fenced.Load(); why != nil {
		return *why
	}
	return ""
}

// hosts are the hosts that run vrdma, by name. With a store of its own, it is this host.
func (r *registration) hosts(s *snapshot) (list []*tenant.Host) {
	if !r.health.shared() {
		return []*tenant.Host{r.self()}
	}
	for _, r := range s.hosts {
		list = append(list, r.host)
	}
	slices.SortFunc(list, func(a, b *tenant.Host) int { return strings.Compare(a.Metadata.Name, b.Metadata.Name) })
	return list
}

// host returns a host, registered or declared; nil: there is none.
func (r *registration) host(s *snapshot, name string) *tenant.Host {
	switch {
	case s.world.Host(name) != nil:
		return s.world.Host(name)
	case !r.health.shared() && name == r.cfg.Host:
		return r.self()
	case r.health.shared() && s.hosts[name] != nil:
		return s.hosts[name].host
	}
	return nil
}

// find returns an object of the world, or a registered host.
func (r *registration) find(s *snapshot, k tenant.Key) tenant.Object {
	if o := s.world.Get(k); o != nil || k.Kind != tenant.KindHost {
		return o
	}
	if h := r.host(s, k.Name); h != nil {
		return h
	}
	return nil
}

// objects are the objects of a kind, with registered hosts. A host with a store of its own is listed only if the caller
// asks for hosts.
func (r *registration) objects(s *snapshot, kind tenant.Kind) []tenant.Object {
	list := s.world.Objects(kind)
	if kind != tenant.KindHost && (kind != "" || !r.health.shared()) {
		return list
	}
	for _, h := range r.hosts(s) {
		if s.world.Host(h.Metadata.Name) == nil {
			list = append(list, h)
		}
	}
	slices.SortFunc(list, func(a, b tenant.Object) int { return a.Key().Compare(b.Key()) })
	return list
}

// status is the status of a host.
func (r *registration) status(s *snapshot, h *tenant.Host) Status {
	name := h.Metadata.Name
	switch {
	case h.Linux():
		return Status{State: Unwatched, Reason: "it runs Linux and enforces nothing"}
	case name == r.cfg.Host && r.reason() != "":
		return Status{State: Failed, Reason: r.reason()}
	case name == r.cfg.Host:
		return Status{State: Ready, Alone: !r.health.shared()}
	case r.health.away() != "":
		return Status{State: Unknown, Reason: "heartbeats are not seen: " + r.health.away()}
	case s.live[name] == "":
		return Status{State: Gone, Reason: "its daemon has sent no heartbeat for 30 s; its NICs stay where they are"}
	}
	return Status{State: Ready}
}

// forget deletes registered hosts for an operator, because they will not come back. Their NICs can then be opened on
// other hosts. A host that has opened one meanwhile writes its placement again. rest are the keys of declared objects.
func (r *registration) forget(s *snapshot, keys []tenant.Key) (rest []tenant.Key, gone []tenant.Effect, conditions []store.Condition, writes []store.Write, err error) {
	var errs tenant.Errors
	for _, k := range keys {
		known := s.hosts[k.Name]
		if k.Kind != tenant.KindHost || s.world.Get(k) != nil || known == nil || !r.health.shared() {
			rest = append(rest, k)
			continue
		}
		switch {
		case k.Name == r.cfg.Host:
			errs = append(errs, &tenant.Error{Key: k, Text: "is this host: ask the daemon of another one, after this one has been stopped"})
			continue
		case s.live[k.Name] != "":
			errs = append(errs, &tenant.Error{Key: k, Text: fmt.Sprintf("its daemon is alive: stop it first, and wait for %v", lifeTime)})
			continue
		}
		gone = append(gone, tenant.Effect{Key: k, Old: known.host})
		conditions = append(conditions, store.Condition{Key: prefixHost + k.Name, Revision: known.revision}, store.Condition{Key: prefixLive + k.Name})
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

// ours removes registered hosts from objects to put: vrdma get prints them, and its output can be applied.
func (r *registration) ours(s *snapshot, objects []tenant.Object) (rest []tenant.Object, warnings []string, err error) {
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
		if r.host(s, h.Metadata.Name) == nil {
			rest = append(rest, o) // the world refuses it with advice
			continue
		}
		warnings = append(warnings, fmt.Sprintf("%v is written by its daemon: it is left as it is", h.Key()))
	}
	if len(errs) > 0 {
		return nil, nil, errs
	}
	return rest, warnings, nil
}
