package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"vrdma.dev/vrdma/internal/platform/kubernetes/kubeapi"
	"vrdma.dev/vrdma/internal/platform/kubernetes/kubelet"
	"vrdma.dev/vrdma/internal/platform/launch"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// Resource is the resource that a container requests in its limits.
const Resource = "vrdma.io/nic"

// Kind is the CDI kind of the slots.
const Kind = "vrdma.io/pod"

// A Node gives the pods of this host their NICs. It implements kubelet.Devices.
type Node struct {
	Name    string       // Kubernetes' name of the host
	Place   launch.Place // the daemon's
	Slots   int
	Daemon  Daemon
	Holders func(context.Context) (map[string]kubelet.Holder, error) // by slot
	Lookup  func(context.Context, kubelet.Holder) (*Pod, error)      // ErrUnknown: not yet
	Log     *slog.Logger
	Every   time.Duration // the period of sweeps; ten seconds if zero
	// Since is when the kubelet started, as far as that is visible; nil: long ago.
	Since func() time.Time
	// Labels gets the pods that NICs are made for; may be nil.
	Labels *Labeler

	// mu is held while slots or NICs change, so that a sweep does not delete a NIC before its pod has got it.
	mu sync.Mutex
	// missing counts the sweeps in a row that found a slot, or a NIC by its gate, without a holder.
	missing map[string]int
}

// A kubelet that has just started may not know its pods yet, and reports no holders.
const (
	sweeps = 3               // in a row without a holder, before a slot or a NIC is released
	fresh  = 5 * time.Minute // how long a new kubelet's report of no holders at all is ignored
)

// ErrUnknown means that the pod is not known yet.
var ErrUnknown = errors.New("the pod is not known yet")

// A Daemon declares NICs.
type Daemon interface {
	World() (World, error)
	Put(*tenant.NIC) error
	Delete([]tenant.Key) error
	// NICs are the NICs with a label.
	NICs(label, value string) ([]*tenant.NIC, error)
}

// Labeler copies the labels of pods to the NICs that are made for them.
func (n *Node) Labeler(c *kubeapi.Client) *Labeler {
	n.Labels = &Labeler{Client: c, Node: n.Name, Label: labelNode, Daemon: n.Daemon, Lock: &n.mu, Log: n.Log}
	return n.Labels
}

// Dir is the directory of the slots.
func (n *Node) Dir() string { return n.Place.Socket + ".pods" }

func (n *Node) link(slot string) string { return filepath.Join(n.Dir(), slot) }

// Open makes the slots.
func (n *Node) Open(cdi string) error {
	names := make([]string, max(n.Slots, 0))
	for i := range names {
		names[i] = strconv.Itoa(i)
	}
	return OpenSlots(n.Dir(), cdi, Kind, names)
}

// Watch implements kubelet.Devices. The slots are healthy while the daemon answers.
func (n *Node) Watch(ctx context.Context, tell func([]kubelet.Device) error) error {
	healthy, told := false, false
	for {
		_, err := n.Daemon.World()
		if now := err == nil; now != healthy || !told {
			if !now {
				n.Log.Warn("no NICs for pods: the daemon does not answer", "error", err)
			}
			healthy, told = now, true
			devices := make([]kubelet.Device, n.Slots)
			for i := range devices {
				devices[i] = kubelet.Device{ID: strconv.Itoa(i), Healthy: healthy}
			}
			if err := tell(devices); err != nil {
				return err
			}
		}
		if !kubelet.Pause(ctx, n.every()/4) {
			return ctx.Err()
		}
	}
}

func (n *Node) every() time.Duration {
	if n.Every == 0 {
		return 10 * time.Second
	}
	return n.Every
}

// Allocate implements kubelet.Devices.
func (n *Node) Allocate(_ context.Context, ids []string) (names []string, err error) {
	// A container has one NIC: two would be mounted at the same path.
	if len(ids) != 1 {
		return nil, fmt.Errorf("a container has one NIC: ask for %s: 1, not %d", Resource, len(ids))
	}
	for _, id := range ids {
		if !n.valid(id) {
			return nil, fmt.Errorf("this host has no slot %q", id)
		}
		names = append(names, Kind+"="+id)
	}
	return names, nil
}

func (n *Node) valid(id string) bool {
	i, err := strconv.Atoi(id)
	return err == nil && i >= 0 && i < n.Slots && strconv.Itoa(i) == id
}

// patience is how long a pod may be unknown. The kubelet waits 30 s for us.
const patience = 20 * time.Second

// Prepare implements kubelet.Devices: it finds the pod of the slots, and links them to the pod's NIC.
func (n *Node) Prepare(ctx context.Context, ids []string) error {
	for _, id := range ids {
		if !n.valid(id) {
			return fmt.Errorf("this host has no slot %q", id)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	pod, err := n.podOf(ctx, ids[0])
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	w, err := n.Daemon.World()
	if err != nil {
		return err
	}
	nic, made, err := Choose(w, n.Name, pod)
	if err != nil {
		return fmt.Errorf("no NIC for pod %v: %w", pod, err)
	}
	if made != nil {
		if err := Declare(n.Daemon, made, n.Labels); err != nil {
			return fmt.Errorf("no NIC for pod %v: %w", pod, err)
		}
		if n.Labels != nil {
			n.Labels.Made(pod)
		}
	}
	gate, err := Gate(n.Place, nic)
	if err != nil {
		return fmt.Errorf("no NIC for pod %v: %w", pod, err)
	}
	for _, id := range ids {
		if err := n.occupy(id, gate); err != nil {
			return err
		}
	}
	n.Log.Info("a pod has its NIC", "pod", pod.String(), "nic", nic.Path(), "slots", ids)
	return nil
}

// podOf waits until the pod of a slot and its labels are known. The pod gets no other NIC meanwhile.
func (n *Node) podOf(ctx context.Context, id string) (*Pod, error) {
	var err error
	for {
		var holders map[string]kubelet.Holder
		if holders, err = n.Holders(ctx); err == nil {
			holder, found := holders[id]
			err = ErrUnknown
			if found {
				var pod *Pod
				if pod, err = n.Lookup(ctx, holder); err == nil {
					return pod, nil
				}
				err = fmt.Errorf("pod %s/%s: %w", holder.Namespace, holder.Name, err)
			}
		}
		if !kubelet.Pause(ctx, 100*time.Millisecond) {
			return nil, fmt.Errorf("slot %s: %w", id, err)
		}
	}
}

// occupy links a slot to a directory. mu is held.
func (n *Node) occupy(id, gate string) error {
	delete(n.missing, id)
	delete(n.missing, gate)
	return Occupy(n.link(id), gate)
}

// Sweep releases slots, and deletes the NICs that were made for pods that are gone, until ctx ends.
func (n *Node) Sweep(ctx context.Context) {
	Repeat(ctx, n.every(), n.sweep, func(err error) { n.Log.Warn("cannot see which pods are gone, will try again", "error", err) })
}

func (n *Node) sweep(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	holders, err := n.Holders(ctx)
	if err != nil {
		return err // an outage releases nothing
	}
	entries, err := os.ReadDir(n.Dir())
	if err != nil {
		return err
	}
	links := make(map[string]string) // gates by slot
	for _, e := range entries {
		if gate, err := os.Readlink(n.link(e.Name())); err == nil {
			links[e.Name()] = gate
		}
	}
	if len(holders) == 0 && len(links) > 0 && n.Since != nil && time.Since(n.Since()) < fresh {
		return nil
	}
	before := n.missing
	n.missing = make(map[string]int)
	miss := func(what string) (gone bool) {
		n.missing[what] = before[what] + 1
		return n.missing[what] >= sweeps
	}
	held, used := make(map[string]bool), make(map[string]bool) // gates of holders, and of slots that are not free
	for slot, gate := range links {
		if _, ok := holders[slot]; ok {
			held[gate], used[gate] = true, true
		} else if !miss(slot) {
			used[gate] = true
		} else if err := os.Remove(n.link(slot)); err != nil {
			return err
		}
	}
	made, err := n.Daemon.NICs(labelNode, n.Name)
	if err != nil {
		return err
	}
	var gone []tenant.Key
	for _, nic := range made {
		at, err := n.Place.NIC(nic.Metadata.Tenant, nic.Metadata.Name)
		if err == nil && !held[at.Gate()] && miss(at.Gate()) && !used[at.Gate()] {
			gone = append(gone, nic.Key())
		}
	}
	if len(gone) == 0 {
		return nil
	}
	n.Log.Info("the pods of NICs are gone", "nics", gone)
	return n.Daemon.Delete(gone)
}
