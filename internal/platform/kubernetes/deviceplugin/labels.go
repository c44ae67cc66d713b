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

// A Labeler follows the pods of a host, and keeps the labels of the NICs that were made for them what those of the
// pods are. So a policy that selects by a label holds for a pod that gets the label later.
type Labeler struct {
	Client *kubeapi.Client
	Node   string // whose pods
	Label  string // the label of NICs that are ours; its value is Node
	Daemon Daemon
	Lock   sync.Locker // is held while NICs change
	Log    *slog.Logger
	Every  time.Duration // after how long it tries again what has failed; ten seconds if zero

	mu   sync.Mutex
	pods map[string]labeled // by UID
	// late are NICs that were put, and nobody has answered: they may still be, with labels that are old by then.
	late []*Unanswered
	once sync.Once
	wake chan struct{} // something has changed
}

// A labeled is a pod's labels at a version.
type labeled struct {
	labels  map[string]string
	version uint64
}

// Run follows until ctx ends.
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
		waits := l.waits() // before we look: what ends while we do may be missed
		if err := l.apply(); err != nil {
			l.Log.Warn("the labels of NICs are not those of their pods, will try again", "error", err)
			waits = true
		}
		if waits {
			again = time.After(every)
		}
	}
}

// Failed is told why a NIC could not be put.
func (l *Labeler) Failed(err error) {
	if l.note(err) {
		l.changed() // to look again until it has ended
	}
}

// note keeps what nobody has answered.
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

// waits forgets what has ended, and reports whether something has not.
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

// apply gives NICs the labels of their pods, where they are others. One that fails does not keep the others from theirs.
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
		for name, value := range pod.labels { // no pod says what ours are
			if !strings.HasPrefix(name, annotations) {
				want[name] = value
			}
		}
		if maps.Equal(want, n.Metadata.Labels) {
			continue
		}
		n.Metadata.Labels = want
		err := l.Daemon.Put(n)
		if w := Warning(""); errors.As(err, &w) { // it has the labels: the daemon itself tries again what it could not do
			l.Log.Warn("a pod's labels have changed, and its NIC does not work yet", "nic", n.Key().Path(), "why", err)
			continue
		}
		if err != nil {
			l.note(err) // Run tries again after a while
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

// Made is told a pod whose NIC has been made, as the API server has answered. The watch may be ahead of that answer, or
// behind it.
func (l *Labeler) Made(p *Pod) {
	l.mu.Lock()
	l.learn(p)
	l.mu.Unlock()
	l.changed()
}

// learn takes what is not older than what is known, and reports whether the labels are others. mu is held.
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

// Replace is told all pods of the host.
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

// Put is told a pod. Most changes are of what it does, not of its labels.
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

// Delete is told a pod that has gone. Its NIC goes with its slot.
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
