package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"vrdma.dev/vrdma/internal/events"
	"vrdma.dev/vrdma/internal/tenancy/store"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// sees reports whether the caller may read an object of a world.
func (t *conversation) sees(w *tenant.World, o tenant.Object) bool {
	if w.MayRead(t.who, o) {
		return true
	}
	k := o.Key()
	return t.peer.NIC != "" && k.Kind == tenant.KindNIC && k.Path() == t.peer.NIC
}

// selected are the requested objects that the caller may read.
func (t *conversation) selected(snap *snapshot, s *Selection) []tenant.Object {
	w := snap.world
	if s.Kind != "" && s.Kind != tenant.KindTenant && s.Tenant != "" && s.Name != "" {
		o := w.Get(tenant.Key{Kind: s.Kind, Tenant: s.Tenant, Name: s.Name})
		if o == nil || !s.Matches(o.Key(), o.Meta().Labels) || !t.sees(w, o) {
			return nil
		}
		return []tenant.Object{o}
	}
	return slices.DeleteFunc(t.p.registration.objects(snap, s.Kind), func(o tenant.Object) bool {
		return !s.Matches(o.Key(), o.Meta().Labels) || !t.sees(w, o)
	})
}

// item is an object as replies have it.
func (p *Plane) item(o tenant.Object) (Item, error) {
	text, err := tenant.Marshal(o)
	if err != nil {
		return Item{}, err
	}
	it := Item{Key: o.Key(), Object: text}
	switch o := o.(type) {
	case *tenant.Host:
		status := p.registration.status(p.snapshots.now.Load(), o)
		it.Status = &status
	case *tenant.NIC:
		it.Status = p.nicStatus(o)
	case *tenant.Fault:
		if info, knows := p.cfg.Provisioner.(FaultInfo); knows {
			hits, nics := info.FaultHits(o.Key())
			it.Status = &Status{State: Ready, Hits: hits, NICs: nics}
		}
	case *tenant.Tenant:
		it.Quota = p.quotaOf(o)
	case *tenant.Network:
		it.Forgeable = p.forgeable(o)
	}
	return it, nil
}

// forgeable are the hosts of which every user can send packets in a network, in the name of NICs of that host: Linux hosts,
// and hosts whose daemon has not published the ports from which it sends. A network that is encrypted or on one host has none.
// The list is empty for the ways host and namespace, too, because it could not be complete: their packets come from any host. A reader
// of the list looks at spec.way first.
func (p *Plane) forgeable(o *tenant.Network) (names []string) {
	if o.Spec.Encryption || o.Spec.Way != "" && o.Spec.Way != tenant.WayVXLAN {
		return nil
	}
	s := p.snapshots.now.Load()
	hosts := make(map[string]bool)
	for _, n := range s.world.NICs(o.Key()) {
		if name := s.where(n, p.cfg.Host, p.health.shared()); name != "" && !hosts[name] {
			hosts[name] = true
			if h := p.registration.host(s, name); h != nil && len(h.Spec.SourcePorts) == 0 {
				names = append(names, name)
			}
		}
	}
	if len(hosts) < 2 {
		return nil
	}
	slices.Sort(names)
	return names
}

// nicStatus is the status of a NIC, and its host.
func (p *Plane) nicStatus(n *tenant.NIC) *Status {
	status := p.states.get(n.Key()).status
	if status.State == "" {
		return nil
	}
	if info, knows := p.cfg.Provisioner.(NICInfo); knows && status.State == Ready {
		status.Socket = info.Socket(n.Key())
	}
	s := p.snapshots.now.Load()
	if !p.health.shared() {
		return &status // it is here
	}
	status.Host = s.where(n, p.cfg.Host, p.health.shared())
	if at := s.placements[n.Key()]; status.State == Ready && at.Open && at.Host != p.cfg.Host && n.Spec.Host == "" {
		status.State, status.Reason = Elsewhere, "it is on host "+status.Host
	}
	return &status
}

func (p *Plane) items(objects []tenant.Object) ([]Item, error) {
	out := make([]Item, 0, len(objects))
	for _, o := range objects {
		it, err := p.item(o)
		if err != nil {
			return nil, err
		}
		out = append(out, it)
	}
	return out, nil
}

func (t *conversation) get(req *Request) error {
	t.p.awaitFirst()
	snap := t.p.snapshots.now.Load()
	objects := t.selected(snap, &req.Select)
	items, err := t.p.items(objects)
	if err != nil {
		return err
	}
	reply := &Reply{Revision: snap.revision, Items: items}
	if why := t.p.health.away(); why != "" {
		reply.Warnings = append(reply.Warnings, why+": this is what it said last")
	}
	if self := t.p.registration.self(); t.sees(snap.world, self) {
		reply.Host = self.Metadata.Name
	}
	return t.send(reply, len(items))
}

// describedEvents is how many events a description has.
const describedEvents = 20

func (t *conversation) describe(req *Request) error {
	if len(req.Keys) != 1 {
		return errors.New("one object is described at a time")
	}
	snap, key := t.p.snapshots.now.Load(), req.Keys[0]
	o := t.p.registration.find(snap, key)
	if o == nil || !t.sees(snap.world, o) {
		// A caller that may not see an object is not told whether it exists.
		return fmt.Errorf("there is no %v that you may see", key)
	}
	it, err := t.p.item(o)
	if err != nil {
		return err
	}
	reply := &Reply{Revision: snap.revision, Items: []Item{it}}
	if info, knows := t.p.cfg.Provisioner.(NICInfo); knows && key.Kind == tenant.KindNIC {
		reply.InUse = info.Users(key)
	}
	reply.InUse = append(reply.InUse, t.belongings(snap.world, key)...)
	recorded, _, _, _ := t.p.journal.feed.after(0, 1<<30)
	for _, e := range slices.Backward(recorded) {
		if e.Object == key && len(reply.Events) < describedEvents {
			reply.Events = append(reply.Events, e)
		}
	}
	slices.Reverse(reply.Events)
	return t.send(reply, 1+len(reply.Events))
}

// describedUsers is how many users of an object a description names.
const describedUsers = 20

// belongings names the users of an object that the caller may see.
func (t *conversation) belongings(w *tenant.World, k tenant.Key) (list []string) {
	n := 0
	for _, by := range w.Belongings(k) {
		if !t.sees(w, w.Get(by)) {
			continue
		}
		if n++; n <= describedUsers {
			list = append(list, by.String())
		}
	}
	if n > describedUsers {
		list = append(list, fmt.Sprintf("%d more", n-describedUsers))
	}
	return list
}

// pieceOf bounds the updates or events in one reply of a stream.
const pieceOf = 256

// watch sends all objects, and then every update. It remembers the keys that it has sent, so that it reports the
// deletion of an object only to watchers that know it.
func (t *conversation) watch(req *Request) error {
	if err := t.send(&Reply{}, pieceOf); err != nil {
		return err
	}
	ctx, stop := t.gone()
	defer stop()
	told := make(map[tenant.Key]struct{})
	number, err := t.catchUp(req, told)
	for err == nil {
		updates, next, missed, wait := t.p.updates.after(number, pieceOf)
		switch {
		case missed > 0:
			number, err = t.catchUp(req, told)
			continue
		case wait != nil:
			select {
			case <-wait:
			case <-ctx.Done():
				return errHungUp
			}
			continue
		}
		number = next
		err = t.tell(req, told, updates)
	}
	return err
}

// catchUp sends all objects, and the deletion of those that are gone. It returns the number of the first update that
// may not have been sent.
func (t *conversation) catchUp(req *Request, told map[tenant.Key]struct{}) (uint64, error) {
	number := t.p.updates.next() // before the world is read: an update may be sent twice, but none is missed
	snap := t.p.snapshots.now.Load()
	var items []Item
	for _, o := range t.selected(snap, &req.Select) {
		it, err := t.p.item(o)
		if err != nil {
			return number, err
		}
		items = append(items, it)
	}
	there := make(map[tenant.Key]struct{}, len(items))
	for _, it := range items {
		there[it.Key] = struct{}{}
	}
	for key := range told {
		if _, still := there[key]; !still {
			items = append(items, Item{Key: key, Deleted: true})
		}
	}
	clear(told)
	for key := range there {
		told[key] = struct{}{}
	}
	for len(items) > pieceOf {
		if err := t.tellItems(items[:pieceOf], false); err != nil {
			return number, err
		}
		items = items[pieceOf:]
	}
	return number, t.tellItems(items, true)
}

// tell sends updates.
func (t *conversation) tell(req *Request, told map[tenant.Key]struct{}, updates []update) error {
	w := t.p.World()
	var items []Item
	for _, u := range updates {
		key := u.object.Key()
		if u.deleted {
			if _, knew := told[key]; knew {
				delete(told, key)
				items = append(items, Item{Key: key, Deleted: true})
			}
			continue
		}
		if !req.Select.Matches(key, u.object.Meta().Labels) || !t.sees(w, u.object) {
			continue
		}
		it, err := t.p.item(u.object)
		if err != nil {
			return err
		}
		told[key] = struct{}{}
		items = append(items, it)
	}
	if len(items) == 0 {
		return nil
	}
	return t.tellItems(items, false)
}

func (t *conversation) tellItems(items []Item, synced bool) error {
	t.c.SetWriteDeadline(time.Now().Add(readTime))
	if t.c.SendJSON(Reply{Items: items, Synced: synced}) != nil {
		return errHungUp
	}
	return nil
}

// events sends the recorded events, and with follow those to come.
func (t *conversation) events(req *Request) error {
	number, end := t.firstEvent(req) // before the answer: what happens after it is sent
	if err := t.send(&Reply{}, pieceOf); err != nil {
		return err
	}
	ctx, stop := t.gone()
	defer stop()
	for req.Follow || number < end {
		recorded, next, missed, wait := t.p.journal.feed.after(number, pieceOf)
		if wait != nil {
			if err := t.await(ctx, wait); err != nil {
				return err
			}
			continue
		}
		number = next
		if recorded = t.visible(req, recorded); len(recorded) == 0 {
			continue
		}
		recorded[0].Missed += missed
		t.c.SetWriteDeadline(time.Now().Add(readTime))
		if t.c.SendJSON(Reply{Events: recorded}) != nil {
			return errHungUp
		}
	}
	return errHungUp // the end of the stream is the end of the connection
}

func (t *conversation) await(ctx context.Context, wait <-chan struct{}) error {
	select {
	case <-wait:
		return nil
	case <-ctx.Done():
		return errHungUp
	}
}

// firstEvent is the number of the first event to send, and the number after the last one that is recorded.
func (t *conversation) firstEvent(req *Request) (number, end uint64) {
	all, end, _, _ := t.p.journal.feed.after(0, 1<<30)
	number = end - uint64(len(all))
	if req.Last <= 0 {
		return number, end
	}
	left := req.Last
	for i := len(all) - 1; i >= 0; i-- {
		if len(t.visible(req, all[i:i+1])) == 0 {
			continue
		}
		if left--; left == 0 {
			return number + uint64(i), end
		}
	}
	return number, end
}

// visible are the requested events that the caller may see: the operator all, others those of objects that they may
// read. Events of a deleted object are visible to its tenant's administrators.
func (t *conversation) visible(req *Request, recorded []events.Event) (out []events.Event) {
	w := t.p.World()
	for _, e := range recorded {
		labels := map[string]string(nil)
		o := w.Get(e.Object)
		if o != nil {
			labels = o.Meta().Labels
		}
		if !req.Select.Matches(e.Object, labels) {
			continue
		}
		switch {
		case t.who.Operator:
		case e.Object == (tenant.Key{}):
			continue
		case o != nil && t.sees(w, o):
		case o == nil && t.administers(w, e.Object.Tenant):
		default:
			continue
		}
		out = append(out, e)
	}
	return out
}

func (t *conversation) administers(w *tenant.World, name string) bool {
	o := w.Tenant(name)
	return o != nil && o.Spec.Administrators.Admits(t.who)
}

// suppose is the world after a change, which is not made.
func (p *Plane) suppose(who tenant.Caller, c tenant.Change) (*tenant.World, error) {
	p.changing.Lock()
	defer p.changing.Unlock()
	w := p.World()
	if err := w.May(who, c); err != nil {
		return nil, deniedOf(err)
	}
	next, _, err := w.Next(c, p.rnd)
	if err != nil {
		return nil, errorOf(err)
	}
	return next, nil
}

// export sends all declared objects as a file that apply and import read.
func (t *conversation) export() error {
	if !t.who.Operator {
		return denied("only the operator may export a store, at the control socket")
	}
	snap := t.p.snapshots.now.Load()
	var b strings.Builder
	fmt.Fprintf(&b, "# vrdma store export: schema %d, store %s, revision %d\n", store.Schema, snap.meta.ID, snap.revision)
	objects := snap.world.Objects("")
	for _, o := range objects {
		text, err := tenant.YAML(o)
		if err != nil {
			return err
		}
		b.WriteString("---\n")
		b.Write(text)
	}
	return t.send(&Reply{Revision: snap.revision, Text: b.String()}, len(objects))
}
