package dra

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"vrdma.dev/vrdma/internal/platform/kubernetes/deviceplugin"
	"vrdma.dev/vrdma/internal/platform/kubernetes/kubeapi"
	"vrdma.dev/vrdma/internal/platform/kubernetes/kubelet"
	"vrdma.dev/vrdma/internal/platform/launch"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// Kind is the CDI kind of the slots.
const Kind = "vrdma.io/claim"

// A Node gives the claims of this host their NICs. It implements kubelet.Claims.
type Node struct {
	Name   string       // Kubernetes' name of the host
	Place  launch.Place // the daemon's
	Slots  int
	Daemon deviceplugin.Daemon
	Client *kubeapi.Client
	Lookup func(context.Context, kubelet.Holder) (*deviceplugin.Pod, error) // deviceplugin.ErrUnknown: not yet
	Log    *slog.Logger
	Every  time.Duration // the period of sweeps; ten seconds if zero
	// Patience is how long a pod may be unknown: twenty seconds if zero. The kubelet waits 45 s.
	Patience time.Duration
	// Labels gets the pods that NICs are made for; may be nil.
	Labels *deviceplugin.Labeler

	// mu is held while slots, records or NICs change.
	mu sync.Mutex
	// missing counts how many times in a row a claim, by its UID, or a NIC, by its path, was missing.
	missing map[string]int
}

// misses is how many times in a row a claim or a NIC is missing before it counts as gone.
const misses = 3

// Dir is the directory of slots and records.
func (n *Node) Dir() string { return n.Place.Socket + ".claims" }

func slotName(i int) string { return "nic-" + strconv.Itoa(i) }

func slotNumber(slot string) (int, bool) {
	number, is := strings.CutPrefix(slot, "nic-")
	i, err := strconv.Atoi(number)
	return i, is && err == nil && i >= 0 && slotName(i) == slot
}

// slotLike reports whether a name may be a slot, also of an earlier configuration with more slots.
func slotLike(slot string) bool { _, is := slotNumber(slot); return is }

func (n *Node) valid(slot string) bool { i, is := slotNumber(slot); return is && i < n.Slots }

func (n *Node) link(slot string) string { return filepath.Join(n.Dir(), slot) }

// SlotNames are the slots that the scheduler may allocate.
func (n *Node) SlotNames() []string {
	names := make([]string, max(n.Slots, 0))
	for i := range names {
		names[i] = slotName(i)
	}
	return names
}

// Open makes the slots.
func (n *Node) Open(cdi string) error {
	return deviceplugin.OpenSlots(n.Dir(), cdi, Kind, n.SlotNames())
}

// Labeler copies the labels of pods to the NICs that are made for them.
func (n *Node) Labeler() *deviceplugin.Labeler {
	n.Labels = &deviceplugin.Labeler{Client: n.Client, Node: n.Name, Label: labelNode, Daemon: n.Daemon, Lock: &n.mu, Log: n.Log}
	return n.Labels
}

// Prepare implements kubelet.Claims: it gives a claim its NIC.
func (n *Node) Prepare(ctx context.Context, c kubelet.Claim) ([]kubelet.Allocated, error) {
	if !goodUID(c.UID) {
		return nil, fmt.Errorf("claim %v: %q is not a UID", c, c.UID)
	}
	if r := n.ready(c); r != nil {
		return n.answer(r), nil
	}
	patience := n.Patience
	if patience == 0 {
		patience = 20 * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	claim, err := n.claim(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("claim %v: %w", c, err)
	}
	r, err := claim.ours(n.Name)
	if err != nil {
		return nil, fmt.Errorf("claim %v: %w", c, err)
	}
	if !n.valid(r.Device) {
		return nil, fmt.Errorf("claim %v: this host has no slot %q", c, r.Device)
	}
	p, err := claim.parameters(r.Request)
	if err != nil {
		return nil, fmt.Errorf("claim %v: %w", c, err)
	}
	pod, err := n.podOf(ctx, claim)
	if err != nil {
		return nil, fmt.Errorf("claim %v: %w", c, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	done, err := n.give(c, claim, r, p, pod)
	if err != nil {
		return nil, fmt.Errorf("claim %v: %w", c, err)
	}
	return n.answer(done), nil
}

func (n *Node) answer(r *record) []kubelet.Allocated {
	return []kubelet.Allocated{{Request: r.Request, Pool: n.Name, Device: r.Slot, Names: []string{Kind + "=" + r.Slot}}}
}

// ready is the record of a claim that is prepared already; nil: it is not. A kubelet that restarts prepares every claim
// again, also while the API server or the daemon is away.
func (n *Node) ready(c kubelet.Claim) *record {
	n.mu.Lock()
	defer n.mu.Unlock()
	r, err := n.load(c.UID)
	if err != nil || r == nil || r.Gone || r.Claim != c {
		return nil
	}
	gate, err := deviceplugin.Gate(n.Place, r.NIC)
	if err != nil {
		return nil
	}
	if to, err := os.Readlink(n.link(r.Slot)); err != nil || to != gate {
		return nil
	}
	return r
}

// claim reads the claim. The UID decides, because another claim may have the name by now.
func (n *Node) claim(ctx context.Context, c kubelet.Claim) (*resourceClaim, error) {
	var claim resourceClaim
	if err := n.Client.Get(ctx, kubeapi.Path("/apis/resource.k8s.io/v1/namespaces", c.Namespace, "resourceclaims", c.Name), &claim); err != nil {
		return nil, err
	}
	if m := claim.Metadata; m.UID != c.UID || m.Namespace != c.Namespace || m.Name != c.Name {
		return nil, fmt.Errorf("%w: %s/%s has UID %s, not %s", kubeapi.ErrNotFound, m.Namespace, m.Name, m.UID, c.UID)
	}
	return &claim, nil
}

// podOf waits until the labels of the claim's pod are known: its NIC has them from the start.
func (n *Node) podOf(ctx context.Context, claim *resourceClaim) (*deviceplugin.Pod, error) {
	holder, uid, err := claim.pod()
	if err != nil {
		return nil, err
	}
	for {
		pod, err := n.Lookup(ctx, holder)
		if err == nil && pod.UID != uid {
			err = deviceplugin.ErrUnknown // an earlier pod of that name
		}
		if err == nil {
			return pod, nil
		}
		if !kubelet.Pause(ctx, 100*time.Millisecond) {
			return nil, fmt.Errorf("pod %s/%s: %w", holder.Namespace, holder.Name, err)
		}
	}
}

// give makes the NIC and links the slot to it. mu is held.
func (n *Node) give(c kubelet.Claim, claim *resourceClaim, r result, p Parameters, pod *deviceplugin.Pod) (*record, error) {
	w, err := n.Daemon.World()
	if err != nil {
		return nil, err
	}
	nic, made, err := choose(w, n.Name, claim, p, pod)
	if err != nil {
		return nil, err
	}
	all, err := n.records()
	if err != nil {
		return nil, err
	}
	for _, other := range all {
		if other.Claim.UID == c.UID || other.Gone {
			continue
		}
		if other.Slot == r.Device {
			// The scheduler allocates a slot to one claim, so the other claim is not allocated any more.
			n.Log.Info("a claim was deleted without an unprepare: its NIC is released", "claim", other.Claim.String())
			if err := n.takeBack(other); err != nil {
				return nil, err
			}
		} else if other.NIC == nic {
			return nil, fmt.Errorf("NIC %s belongs to claim %v: a NIC has one claim", nic.Path(), other.Claim)
		}
	}
	mine := &record{Claim: c, NIC: nic, Made: made != nil, Slot: r.Device, Request: r.Request}
	if err := n.keep(mine); err != nil {
		return nil, err
	}
	if err := n.enter(mine, made); err != nil {
		mine.Gone = true // until the kubelet calls again, or the next sweep
		return nil, errors.Join(err, n.keep(mine))
	}
	if made != nil && n.Labels != nil {
		n.Labels.Made(pod)
	}
	n.Log.Info("a claim has its NIC", "claim", c.String(), "pod", pod.String(), "nic", nic.Path(), "slot", r.Device)
	return mine, nil
}

// enter declares the NIC, if it is made for the claim, and links the slot to it. mu is held.
func (n *Node) enter(r *record, made *tenant.NIC) error {
	if made != nil {
		if err := deviceplugin.Declare(n.Daemon, made, n.Labels); err != nil {
			return err
		}
	}
	gate, err := deviceplugin.Gate(n.Place, r.NIC)
	if err != nil {
		return err
	}
	return deviceplugin.Occupy(n.link(r.Slot), gate)
}

// Unprepare implements kubelet.Claims. The daemon may be away, and the claim deleted.
func (n *Node) Unprepare(_ context.Context, c kubelet.Claim) error {
	if !goodUID(c.UID) {
		return nil // nothing was ever prepared for it
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	r, err := n.load(c.UID)
	if err != nil || r == nil {
		return err
	}
	if err := n.takeBack(r); err != nil {
		return err
	}
	n.Log.Info("a claim is taken back", "claim", c.String(), "nic", r.NIC.Path())
	if err := n.finish([]*record{r}); err != nil {
		n.Log.Warn("the NIC of a claim goes when the daemon answers", "nic", r.NIC.Path(), "error", err)
	}
	return nil
}

// takeBack removes the link of the claim's slot, and marks the record. mu is held.
func (n *Node) takeBack(r *record) error {
	if r.Gone {
		return nil
	}
	at, err := n.Place.NIC(r.NIC.Tenant, r.NIC.Name)
	if err != nil {
		return err
	}
	if to, err := os.Readlink(n.link(r.Slot)); err == nil && to == at.Gate() {
		if err := os.Remove(n.link(r.Slot)); err != nil {
			return err
		}
	}
	r.Gone = true
	return n.keep(r)
}

// finish deletes the NICs of claims that are gone, and then their records. mu is held.
func (n *Node) finish(gone []*record) error {
	if len(gone) == 0 {
		return nil
	}
	there, err := n.Daemon.NICs(labelNode, n.Name)
	if err != nil {
		return err
	}
	byClaim := make(map[string]tenant.Key)
	for _, nic := range there {
		byClaim[nic.Metadata.Labels[labelClaim]] = nic.Key()
	}
	for _, r := range gone {
		if nic, is := byClaim[r.Claim.UID]; is && r.Made {
			if err := n.Daemon.Delete([]tenant.Key{nic}); err != nil {
				return err
			}
		}
		if err := n.drop(r); err != nil {
			return err
		}
	}
	return nil
}
