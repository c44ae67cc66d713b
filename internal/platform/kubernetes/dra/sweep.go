package dra

import (
	"context"
	"errors"
	"time"

	"vrdma.dev/vrdma/internal/platform/kubernetes/deviceplugin"
	"vrdma.dev/vrdma/internal/platform/kubernetes/kubeapi"
	"vrdma.dev/vrdma/internal/platform/kubernetes/kubelet"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// Sweep deletes what is left over, until ctx ends: NICs whose claims ended while the daemon was away, claims that
// neither the API server nor the kubelet knows any more, and NICs without a record.
func (n *Node) Sweep(ctx context.Context) {
	every := n.Every
	if every == 0 {
		every = 10 * time.Second
	}
	deviceplugin.Repeat(ctx, every, n.sweep, func(err error) {
		n.Log.Warn("cannot ask the API server which claims were deleted; trying again", "error", err)
	})
}

func (n *Node) sweep(ctx context.Context) error {
	lost, err := n.lost(ctx)
	if err != nil {
		return err // an outage deletes nothing
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	all, err := n.records()
	if err != nil {
		return err
	}
	before := n.missing
	n.missing = make(map[string]int)
	miss := func(what string) (gone bool) {
		n.missing[what] = before[what] + 1
		return n.missing[what] >= misses
	}
	var gone []*record
	known := make(map[string]bool) // claims
	for _, r := range all {
		known[r.Claim.UID] = true
		if !r.Gone && lost[r.Claim] && miss(r.Claim.UID) {
			n.Log.Info("a claim was deleted without an unprepare: its NIC is released", "claim", r.Claim.String())
			if err := n.takeBack(r); err != nil {
				return err
			}
		}
		if r.Gone {
			gone = append(gone, r)
		}
	}
	if err := n.finish(gone); err != nil {
		return err
	}
	there, err := n.Daemon.NICs(labelNode, n.Name)
	if err != nil {
		return err
	}
	var strays []tenant.Key
	for _, nic := range there {
		if !known[nic.Metadata.Labels[labelClaim]] && miss(nic.Key().Path()) {
			strays = append(strays, nic.Key())
		}
	}
	if len(strays) == 0 {
		return nil
	}
	n.Log.Info("NICs are no claim's", "nics", strays)
	return n.Daemon.Delete(strays)
}

// lost are the claims with a record that the API server does not know, or has deallocated.
func (n *Node) lost(ctx context.Context) (map[kubelet.Claim]bool, error) {
	n.mu.Lock()
	all, err := n.records()
	n.mu.Unlock()
	if err != nil {
		return nil, err
	}
	lost := make(map[kubelet.Claim]bool)
	for _, r := range all {
		if r.Gone {
			continue
		}
		claim, err := n.claim(ctx, r.Claim)
		if err == nil {
			_, err = claim.ours(n.Name)
		}
		switch {
		case errors.Is(err, kubeapi.ErrNotFound), errors.Is(err, errOther):
			lost[r.Claim] = true
		case err != nil:
			return nil, err
		}
	}
	return lost, nil
}
