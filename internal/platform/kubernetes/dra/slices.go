package dra

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"sync"
	"time"

	"vrdma.dev/vrdma/internal/platform/kubernetes/kubeapi"
	"vrdma.dev/vrdma/internal/platform/kubernetes/kubelet"
)

// A Publisher publishes the slots of this host in ResourceSlices, for the scheduler. The kubelet deletes them after the
// driver was away for 30 s, and other clients may. The Publisher corrects them whenever they differ.
type Publisher struct {
	Client *kubeapi.Client
	Node   string
	Slots  []string
	// Works reports whether the daemon answers. After several failures the host publishes no slots.
	Works func() bool
	Log   *slog.Logger
	Every time.Duration // the period of checks; five seconds if zero

	mu   sync.Mutex
	is   map[string]*slice // the API server's slices by name; nil: not known yet
	wake chan struct{}
}

const (
	slicesPath = "/apis/resource.k8s.io/v1/resourceslices"
	perSlice   = 128 // devices: Kubernetes' limit
	// failures is how many times in a row the daemon does not answer before the slots are withdrawn. A restart is
	// shorter.
	failures = 6
)

// A slice is the part of a ResourceSlice that the driver reads and writes.
type slice struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Metadata   sliceMeta `json:"metadata"`
	Spec       sliceSpec `json:"spec"`
}

type sliceMeta struct {
	Name    string  `json:"name"`
	Version string  `json:"resourceVersion,omitempty"`
	Owners  []owner `json:"ownerReferences,omitempty"`
}

// An owner is the Node, with which the slice is deleted.
type owner struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
	Controller bool   `json:"controller"`
}

type sliceSpec struct {
	Driver   string   `json:"driver"`
	NodeName string   `json:"nodeName"`
	Pool     pool     `json:"pool"`
	Devices  []device `json:"devices"`
}

type pool struct {
	Name       string `json:"name"`
	Generation int64  `json:"generation"`
	Slices     int64  `json:"resourceSliceCount"`
}

type device struct {
	Name string `json:"name"`
}

// Run publishes until ctx ends. The slices stay: pods that are scheduled then wait for the driver.
func (p *Publisher) Run(ctx context.Context) {
	p.wake = make(chan struct{}, 1)
	var both sync.WaitGroup
	defer both.Wait()
	both.Go(func() {
		query := url.Values{"fieldSelector": {"spec.nodeName=" + p.Node + ",spec.driver=" + Driver}}
		p.Client.Follow(ctx, slicesPath, query, p, func(err error) {
			p.Log.Warn("cannot list ResourceSlices; trying again", "error", err)
		})
	})
	every := p.Every
	if every == 0 {
		every = 5 * time.Second
	}
	failed, said := 0, ""
	for {
		if p.Works() {
			failed = 0
		} else {
			failed++
		}
		err := p.publish(ctx, failed < failures)
		if ctx.Err() != nil {
			return
		}
		if err != nil && err.Error() != said {
			p.Log.Warn("the slots of this host are not published, will try again", "error", err)
			said = err.Error()
		} else if err == nil {
			said = ""
		}
		timer := time.NewTimer(every)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-p.wake:
			timer.Stop()
			// Changes often come together, and another client may undo ours again and again.
			if !kubelet.Pause(ctx, min(every, time.Second)) {
				return
			}
		case <-timer.C:
		}
	}
}

// want are the slices that should exist, of a generation.
func (p *Publisher) want(works bool, generation int64, uid string) []*slice {
	chunks := [][]string{nil}
	if works {
		chunks = slices.Collect(slices.Chunk(p.Slots, perSlice))
	}
	var all []*slice
	for i, names := range chunks {
		s := &slice{APIVersion: "resource.k8s.io/v1", Kind: "ResourceSlice"}
		s.Metadata.Name = fmt.Sprintf("%s-%s-%d", p.Node, Driver, i)
		s.Metadata.Owners = []owner{{"v1", "Node", p.Node, uid, true}}
		s.Spec = sliceSpec{Driver, p.Node, pool{p.Node, generation, int64(len(chunks))}, []device{}}
		for _, name := range names {
			s.Spec.Devices = append(s.Spec.Devices, device{name})
		}
		all = append(all, s)
	}
	return all
}

// same reports whether the API server has the wanted slices, whatever the generation.
func (p *Publisher) same(want []*slice, is map[string]*slice) bool {
	if len(want) != len(is) {
		return false
	}
	for _, w := range want {
		s := is[w.Metadata.Name]
		if s == nil || s.Spec.Pool.Name != w.Spec.Pool.Name || s.Spec.Pool.Slices != w.Spec.Pool.Slices || !slices.Equal(s.Spec.Devices, w.Spec.Devices) {
			return false
		}
		if s.Spec.Pool.Generation != is[want[0].Metadata.Name].Spec.Pool.Generation {
			return false // an update is incomplete
		}
	}
	return true
}

// publish corrects the slices.
func (p *Publisher) publish(ctx context.Context, works bool) error {
	p.mu.Lock()
	is := make(map[string]*slice, len(p.is))
	known := p.is != nil
	for name, s := range p.is {
		is[name] = s
	}
	p.mu.Unlock()
	if !known {
		return nil
	}
	var generation int64
	for _, s := range is {
		generation = max(generation, s.Spec.Pool.Generation)
	}
	if p.same(p.want(works, generation, ""), is) {
		return nil
	}
	var node struct {
		Metadata struct {
			UID string `json:"uid"`
		} `json:"metadata"`
	}
	if err := p.Client.Get(ctx, kubeapi.Path("/api/v1/nodes", p.Node), &node); err != nil {
		return err
	}
	for _, w := range p.want(works, generation+1, node.Metadata.UID) {
		if err := p.write(ctx, w, is[w.Metadata.Name]); err != nil {
			return err
		}
		delete(is, w.Metadata.Name)
	}
	for name := range is {
		if err := p.remove(ctx, name); err != nil {
			return err
		}
	}
	p.Log.Info("slots are published", "slots", len(p.Slots), "works", works)
	return nil
}

// remove deletes a slice. As in write, events of the watch wait for the answer.
func (p *Publisher) remove(ctx context.Context, name string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.Client.Delete(ctx, kubeapi.Path(slicesPath, name)); err != nil && !errors.Is(err, kubeapi.ErrNotFound) {
		return err
	}
	delete(p.is, name)
	return nil
}

// write creates or replaces a slice. Events of the watch wait for the answer: when another client deletes a new slice
// at once, its deletion must be seen after its creation.
func (p *Publisher) write(ctx context.Context, w, is *slice) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := new(slice)
	var err error
	if is == nil {
		err = p.Client.Create(ctx, slicesPath, w, now)
	} else {
		w.Metadata.Version = is.Metadata.Version
		err = p.Client.Update(ctx, kubeapi.Path(slicesPath, w.Metadata.Name), w, now)
	}
	if err == nil {
		p.is[now.Metadata.Name] = now // the watch delivers it later, too
	}
	return err
}

// Replace implements kubeapi.Listener.
func (p *Publisher) Replace(objects []json.RawMessage) error {
	all := make(map[string]*slice)
	for _, o := range objects {
		s := new(slice)
		if err := json.Unmarshal(o, s); err != nil {
			return err
		}
		all[s.Metadata.Name] = s
	}
	p.mu.Lock()
	p.is = all
	p.mu.Unlock()
	p.changed()
	return nil
}

// Put implements kubeapi.Listener.
func (p *Publisher) Put(object json.RawMessage) error { return p.one(object, false) }

// Delete implements kubeapi.Listener.
func (p *Publisher) Delete(object json.RawMessage) error { return p.one(object, true) }

func (p *Publisher) one(object json.RawMessage, gone bool) error {
	s := new(slice)
	if err := json.Unmarshal(object, s); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if is := p.is[s.Metadata.Name]; is != nil && kubeapi.Version(s.Metadata.Version) < kubeapi.Version(is.Metadata.Version) {
		return nil // it was written since
	}
	if gone {
		delete(p.is, s.Metadata.Name)
	} else {
		p.is[s.Metadata.Name] = s
	}
	p.changed()
	return nil
}

func (p *Publisher) changed() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}
