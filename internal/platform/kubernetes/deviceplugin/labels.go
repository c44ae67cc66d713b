package deviceplugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"vrdma.dev/vrdma/internal/platform/kubernetes/kubeapi"
)

// A Labeler follows the pods of a host, and copies their labels to the NICs that were made for them. So a policy that
// selects by a label also applies to a pod that gets the label later.
type Labeler struct {
	Client *kubeapi.Client
	Node   string // the host of the pods
	Label  string // the label of the plugin's NICs; its value is Node
	Daemon Daemon
	Lock   sync.Locker // held while NICs change
	Log    *slog.Logger
	Every  time.Duration // the pause before a retry; ten seconds if zero

	mu   sync.Mutex
	pods map[string]labeled // by UID
	// late are NICs whose Put was not answered: it may still happen, with labels that are old by then.
	late []*Unanswered
	once sync.Once
	wake chan struct{} // a pod has changed
}

// A labeled is a pod's labels at a version.
type labeled struct {
	labels  map[string]string
	version uint64
}

// Run follows the pods until ctx ends.
func (l *Labeler) Run(ctx context.Context) {
	wake := l.waker()
	var both sync.WaitGroup
	defer both.Wait()
	both.Go(func() {
		l.Client.Follow(ctx, "/api/v1/pods", url.Values{"fieldSelector": {"spec.nodeName=" + l.Node}}, l, func(err error) {
			l.Log.Warn("labels of pods that change are not heard of, will try again", "error", err)
		})
	})
	every := l.Every
	if every == 0 {
		every = 10 * time.Second
	}
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-wake:
		case <-again:
		}
		again = nil
		waits := l.waits() // before the check: a call that ends during it may be missed
		if err := l.apply(); err != nil {
			l.Log.Warn("the labels of NICs are not those of their pods, will try again", "error", err)
			waits = true
		}
		if waits {
			again = time.After(every)
		}
	}
}

// Failed records why a NIC could not be declared.
func (l *Labeler) Failed(err error) {
	if l.note(err) {
		l.changed() // to check again until the call has ended
	}
}

// note keeps unanswered calls.
func (l *Labeler) note(err error) bool {
	var u *Unanswered
	if !errors.As(err, &u) {
		return false
	}
	l.mu.Lock()
	l.late = append(l.late, u)
	l.mu.Unlock()
	return true
}

// waits forgets calls that have ended, and reports whether others remain.
func (l *Labeler) waits() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.late = slices.DeleteFunc(l.late, func(u *Unanswered) bool {
		select {
		case <-u.Ended:
			return true
		default:
			return false
		}
	})
	return len(l.late) > 0
}

// apply copies the labels of pods to NICs where they differ. A failure for one NIC does not affect the others.
func (l *Labeler) apply() error {
	l.Lock.Lock()
	defer l.Lock.Unlock()
	nics, err := l.Daemon.NICs(l.Label, l.Node)
	if err != nil {
		return err
	}
	var errs []error
	for _, n := range nics {
		l.mu.Lock()
		pod, known := l.pods[n.Metadata.Labels[labelPod]]
		l.mu.Unlock()
		if !known {
			continue
		}
		want := make(map[string]string)
		for name, value := range n.Metadata.Labels { // ours stay
			if strings.HasPrefix(name, annotations) {
				want[name] = value
			}
		}
		for name, value := range pod.labels { // pods cannot set ours
			if !strings.HasPrefix(name, annotations) {
				want[name] = value
			}
		}
		if maps.Equal(want, n.Metadata.Labels) {
			continue
		}
		n.Metadata.Labels = want
		err := l.Daemon.Put(n)
		if w := Warning(""); errors.As(err, &w) { // it has the labels: the daemon itself retries the rest
			l.Log.Warn("a pod's labels have changed, and its NIC does not work yet", "nic", n.Key().Path(), "why", err)
			continue
		}
		if err != nil {
			l.note(err) // Run retries after a while
			errs = append(errs, fmt.Errorf("NIC %s: %w", n.Key().Path(), err))
			continue
		}
		l.Log.Info("a pod's labels have changed", "nic", n.Key().Path())
	}
	return errors.Join(errs...)
}

func (l *Labeler) waker() chan struct{} {
	l.once.Do(func() { l.wake = make(chan struct{}, 1) })
	return l.wake
}

func (l *Labeler) changed() {
	select {
	case l.waker() <- struct{}{}:
	default:
	}
}

// Made records a pod whose NIC was made, as the API server answered. The watch may be ahead of that answer, or behind
// it.
func (l *Labeler) Made(p *Pod) {
	l.mu.Lock()
	l.learn(p)
	l.mu.Unlock()
	l.changed()
}

// learn stores labels that are not older than the known ones, and reports whether they differ. mu is held.
func (l *Labeler) learn(p *Pod) bool {
	if l.pods == nil {
		l.pods = make(map[string]labeled)
	}
	before, known := l.pods[p.UID]
	if known && p.version < before.version {
		return false
	}
	l.pods[p.UID] = labeled{p.Labels, p.version}
	return !known || !maps.Equal(before.labels, p.Labels)
}

// Replace implements kubeapi.Listener with all pods of the host.
func (l *Labeler) Replace(objects []json.RawMessage) error {
	pods := make([]*Pod, len(objects))
	for i, o := range objects {
		var m metadata
		if err := json.Unmarshal(o, &m); err != nil {
			return err
		}
		pods[i] = m.pod()
	}
	l.mu.Lock()
	before := l.pods
	l.pods = make(map[string]labeled)
	for _, p := range pods {
		if old, known := before[p.UID]; known {
			l.pods[p.UID] = old
		}
		l.learn(p)
	}
	l.mu.Unlock()
	l.changed()
	return nil
}

// Put implements kubeapi.Listener. Most changes of a pod do not change its labels.
func (l *Labeler) Put(object json.RawMessage) error {
	var m metadata
	if err := json.Unmarshal(object, &m); err != nil {
		return err
	}
	l.mu.Lock()
	others := l.learn(m.pod())
	l.mu.Unlock()
	if others {
		l.changed()
	}
	return nil
}

// Delete implements kubeapi.Listener. The pod's NIC is deleted with its slot.
func (l *Labeler) Delete(object json.RawMessage) error {
	var m metadata
	if err := json.Unmarshal(object, &m); err != nil {
		return err
	}
	l.mu.Lock()
	delete(l.pods, m.Metadata.UID)
	l.mu.Unlock()
	return nil
}
