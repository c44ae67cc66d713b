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

// A Publisher tells the scheduler which slots this host has, by ResourceSlices. The kubelet deletes them when we are
// away for half a minute; others might. They are put right whenever they are not what they should be.
type Publisher struct {
	Client *kubeapi.Client
	Node   string
	Slots  []string
	// Works reports whether the daemon answers. A host whose daemon does not, for a while, has no slots.
	Works func() bool
	Log   *slog.Logger
	Every time.Duration // how often it asks; five seconds if zero

	mu   sync.Mutex
	is   map[string]*slice // by name, what the API server has; nil: not known yet
	wake chan struct{}
}

const (
	slicesPath = "/apis/resource.k8s.io/v1/resourceslices"
	perSlice   = 128 // devices, by Kubernetes' own bound
	// failures are how many times in a row the daemon does not answer before the slots go: a restart is shorter.
	failures = 6
)

// A slice is what we read and write of a ResourceSlice.
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

// An owner: with the Node goes the slice.
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

// Run publishes until ctx ends. What is published stays: pods that are scheduled meanwhile wait for us.
func (p *Publisher) Run(ctx context.Context) {
	p.wake = make(chan struct{}, 1)
	var both sync.WaitGroup
	defer both.Wait()
	both.Go(func() {
		query := url.Values{"fieldSelector": {"spec.nodeName=" + p.Node + ",spec.driver=" + Driver}}
		p.Client.Follow(ctx, slicesPath, query, p, func(err error) {
			p.Log.Warn("the API server does not tell its ResourceSlices, will try again", "error", err)
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
			// A change often comes with others, and somebody may undo what we do for ever.
			if !kubelet.Pause(ctx, min(every, time.Second)) {
				return
			}
		case <-timer.C:
		}
	}
}

// want are the slices that there should be, of a generation.
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

// same reports whether the API server has what is wanted, whatever the generation.
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
			return false // a part of an update
		}
	}
	return true
}

// publish puts right what is wrong.
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

// remove deletes a slice. As in write, what the watch tells waits for the answer.
func (p *Publisher) remove(ctx context.Context, name string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.Client.Delete(ctx, kubeapi.Path(slicesPath, name)); err != nil && !errors.Is(err, kubeapi.ErrNotFound) {
		return err
	}
	delete(p.is, name)
	return nil
}

// write creates a slice, or replaces the one that is there. What the watch tells meanwhile waits for the answer: of a slice
// that we make, and somebody deletes at once, the end is heard after the beginning.
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
		p.is[now.Metadata.Name] = now // the watch tells it, too, later
	}
	return err
}

// Replace is told all ResourceSlices of ours.
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

// Put is told one.
func (p *Publisher) Put(object json.RawMessage) error { return p.one(object, false) }

// Delete is told one that has gone.
func (p *Publisher) Delete(object json.RawMessage) error { return p.one(object, true) }

func (p *Publisher) one(object json.RawMessage, gone bool) error {
	s := new(slice)
	if err := json.Unmarshal(object, s); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if is := p.is[s.Metadata.Name]; is != nil && kubeapi.Version(s.Metadata.Version) < kubeapi.Version(is.Metadata.Version) {
		return nil // we have written it since
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
