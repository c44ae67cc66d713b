package dra

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"vrdma.dev/vrdma/internal/platform/kubernetes/deviceplugin"
	"vrdma.dev/vrdma/internal/platform/kubernetes/kubelet"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// Driver is the name of the driver in Kubernetes.
const Driver = "vrdma.io"

// Labels of NICs that are made for a claim. Pods cannot set them.
const (
	labelNode  = "vrdma.io/claims-of" // the host whose driver made it and deletes it
	labelClaim = "vrdma.io/claim"     // the claim's UID
)

// A resourceClaim is the part of a ResourceClaim (resource.k8s.io/v1) that the driver reads.
type resourceClaim struct {
	Metadata struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
		UID       string `json:"uid"`
	} `json:"metadata"`
	Status struct {
		Allocation *struct {
			Devices struct {
				Results []result `json:"results"`
				Config  []config `json:"config"`
			} `json:"devices"`
		} `json:"allocation"`
		ReservedFor []struct {
			APIGroup string `json:"apiGroup"`
			Resource string `json:"resource"`
			Name     string `json:"name"`
			UID      string `json:"uid"`
		} `json:"reservedFor"`
	} `json:"status"`
}

// A result is a device that the scheduler has allocated.
type result struct {
	Request string `json:"request"` // with a / and the name of the alternative, if it had any
	Driver  string `json:"driver"`
	Pool    string `json:"pool"`
	Device  string `json:"device"`
	Admin   bool   `json:"adminAccess"`
}

// A config has parameters of any driver.
type config struct {
	Source   string   `json:"source"`
	Requests []string `json:"requests"` // none: all
	Opaque   *struct {
		Driver     string          `json:"driver"`
		Parameters json.RawMessage `json:"parameters"`
	} `json:"opaque"`
}

// errOther means that a claim is not, or no longer, of this host.
var errOther = errors.New("the claim has no NIC of this host")

// ours is the device of a claim on this host.
func (c *resourceClaim) ours(node string) (r result, err error) {
	if c.Status.Allocation == nil {
		return r, fmt.Errorf("%w: it is not allocated", errOther)
	}
	found := 0
	for _, one := range c.Status.Allocation.Devices.Results {
		if one.Driver == Driver {
			r, found = one, found+1
		}
	}
	switch {
	case found == 0:
		return r, errOther
	case found > 1:
		// Two would be mounted at the same path.
		return r, fmt.Errorf("a pod has one NIC: ask for one device of %s, not %d", Driver, found)
	case r.Pool != node:
		return r, fmt.Errorf("%w: it is of pool %s", errOther, r.Pool)
	case r.Admin:
		return r, errors.New("a NIC has one pod: there is no adminAccess to it")
	}
	return r, nil
}

// parameters are those of the class and of the claim for a request.
func (c *resourceClaim) parameters(request string) (Parameters, error) {
	parent, _, _ := strings.Cut(request, "/")
	var from [2]Parameters // class, claim
	for _, one := range c.Status.Allocation.Devices.Config {
		if one.Opaque == nil || one.Opaque.Driver != Driver {
			continue
		}
		if len(one.Requests) > 0 && !slices.Contains(one.Requests, request) && !slices.Contains(one.Requests, parent) {
			continue
		}
		p, err := ParseParameters(one.Opaque.Parameters)
		if err != nil {
			return p, err
		}
		i := 0
		if one.Source != "FromClass" {
			i = 1
		}
		if len(from[i].said()) > 0 {
			return p, errors.New("there is more than one config for the NIC: write one")
		}
		from[i] = p
	}
	return join(from[0], from[1])
}

// pod is the pod of the claim.
func (c *resourceClaim) pod() (h kubelet.Holder, uid string, err error) {
	var names []string
	for _, r := range c.Status.ReservedFor {
		names = append(names, r.Name)
		if r.APIGroup != "" || r.Resource != "pods" {
			return h, "", fmt.Errorf("the claim is reserved for a %s, which is not a pod", r.Resource)
		}
		h, uid = kubelet.Holder{Namespace: c.Metadata.Namespace, Name: r.Name}, r.UID
	}
	switch len(names) {
	case 0:
		return h, "", errors.New("the claim is reserved for no pod")
	case 1:
		return h, uid, nil
	}
	return h, "", fmt.Errorf("the claim is reserved for %d pods, %s: a NIC has one pod, so give each pod its own claim (a ResourceClaimTemplate does)", len(names), strings.Join(names, ", "))
}

// choose returns the NIC of a claim. made is nil if the NIC was declared.
func choose(w deviceplugin.World, node string, c *resourceClaim, p Parameters, pod *deviceplugin.Pod) (nic tenant.Key, made *tenant.NIC, err error) {
	of, err := w.TenantOf(c.Metadata.Namespace)
	if err != nil {
		return nic, nil, err
	}
	if p.Tenant != "" && p.Tenant != of {
		// The error does not tell whether another tenant of that name exists.
		return nic, nil, fmt.Errorf("namespace %s may not use tenant %q: it belongs to tenant %s", c.Metadata.Namespace, p.Tenant, of)
	}
	if p.NIC != "" {
		nic = tenant.Key{Kind: tenant.KindNIC, Tenant: of, Name: p.NIC}
		if !slices.Contains(w.NICs, nic) {
			return nic, nil, fmt.Errorf("tenant %s has no NIC %q: declare it, or correct the name", of, p.NIC)
		}
		return nic, nil, nil
	}
	network, err := w.Network(of, p.Network, p.Network != "")
	if err != nil {
		return nic, nil, fmt.Errorf("%w (parameter network)", err)
	}
	labels, err := pod.NICLabels(map[string]string{labelNode: node, labelClaim: c.Metadata.UID})
	if err != nil {
		return nic, nil, err
	}
	made = &tenant.NIC{Metadata: tenant.Metadata{Name: deviceplugin.NameFor(c.Metadata.Name, c.Metadata.UID), Tenant: of, Labels: labels}}
	made.Spec.Network, made.Spec.Address, made.Spec.Addresses = network, p.Address, p.Addresses
	if p.Rate != nil {
		made.Spec.Rate = *p.Rate
	}
	if p.Limits != nil {
		made.Spec.Limits = *p.Limits
	}
	return made.Key(), made, nil
}
