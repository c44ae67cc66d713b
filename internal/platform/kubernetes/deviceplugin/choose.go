package deviceplugin

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// A Pod is the part of a pod that the plugin uses.
type Pod struct {
	Namespace, Name, UID string
	Labels, Annotations  map[string]string
	version              uint64
}

func (p *Pod) String() string { return p.Namespace + "/" + p.Name }

// Annotations of pods.
const (
	annotations       = "vrdma.io/"
	annotationNIC     = annotations + "nic"
	annotationNetwork = annotations + "network"
	annotationAddress = annotations + "address"
)

// Labels of NICs that are made for a pod. Pods cannot set them.
const (
	labelNode = annotations + "node" // the host whose plugin made it and deletes it
	labelPod  = annotations + "pod"  // the pod's UID
)

// Choose returns the NIC of a pod. made is nil if the NIC was declared.
func Choose(w World, node string, p *Pod) (nic tenant.Key, made *tenant.NIC, err error) {
	of, err := w.TenantOf(p.Namespace)
	if err != nil {
		return nic, nil, err
	}
	for name := range p.Annotations {
		if strings.HasPrefix(name, annotations) && !slices.Contains([]string{annotationNIC, annotationNetwork, annotationAddress}, name) {
			return nic, nil, fmt.Errorf("the annotation %s is not known: there are %s, %s and %s", name, annotationNIC, annotationNetwork, annotationAddress)
		}
	}
	if name, found := p.Annotations[annotationNIC]; found {
		if p.Annotations[annotationNetwork] != "" || p.Annotations[annotationAddress] != "" {
			return nic, nil, fmt.Errorf("a declared NIC (annotation %s) has its network and address already: leave out %s and %s", annotationNIC, annotationNetwork, annotationAddress)
		}
		nic = tenant.Key{Kind: tenant.KindNIC, Tenant: of, Name: name}
		if !slices.Contains(w.NICs, nic) {
			return nic, nil, fmt.Errorf("tenant %s has no NIC %q (annotation %s): declare it, or correct the name", of, name, annotationNIC)
		}
		return nic, nil, nil
	}
	made, err = w.make(of, node, p)
	if err != nil {
		return nic, nil, err
	}
	return made.Key(), made, nil
}

// A World is the part of the declared objects that a choice needs.
type World struct {
	Tenants  []*tenant.Tenant
	Networks []tenant.Key
	NICs     []tenant.Key
}

// TenantOf is the tenant of a namespace.
func (w World) TenantOf(namespace string) (string, error) {
	var of []string
	for _, t := range w.Tenants {
		if slices.Contains(t.Spec.Namespaces, namespace) {
			of = append(of, t.Metadata.Name)
		}
	}
	switch len(of) {
	case 1:
		return of[0], nil
	case 0:
		return "", fmt.Errorf("namespace %s belongs to no tenant: the operator must add it to spec.namespaces of a Tenant", namespace)
	}
	return "", fmt.Errorf("namespace %s belongs to more than one tenant, %s: the operator must remove it from the others", namespace, strings.Join(of, " and "))
}

// make is a new NIC for the pod alone.
func (w World) make(of, node string, p *Pod) (*tenant.NIC, error) {
	if p.UID == "" {
		return nil, errors.New("the pod has no UID")
	}
	name, said := p.Annotations[annotationNetwork]
	network, err := w.Network(of, name, said)
	if err != nil {
		return nil, fmt.Errorf("%w (annotation %s)", err, annotationNetwork)
	}
	labels, err := p.NICLabels(map[string]string{labelNode: node})
	if err != nil {
		return nil, err
	}
	n := &tenant.NIC{Metadata: tenant.Metadata{Name: NameFor(p.Name, p.UID), Tenant: of, Labels: labels}}
	n.Spec.Network = network
	if text := p.Annotations[annotationAddress]; text != "" {
		if n.Spec.Address, err = netip.ParseAddr(text); err != nil {
			return nil, fmt.Errorf("the annotation %s: %w", annotationAddress, err)
		}
	}
	return n, nil
}

// NICLabels are the labels of a NIC that is made for the pod: the pod's labels, and ours.
func (p *Pod) NICLabels(ours map[string]string) (map[string]string, error) {
	labels := maps.Clone(p.Labels)
	if labels == nil {
		labels = make(map[string]string)
	}
	for name := range labels {
		// Only the plugin decides which NICs it may delete.
		if strings.HasPrefix(name, annotations) {
			return nil, fmt.Errorf("the label %s begins with %s, which is for annotations: rename it", name, annotations)
		}
	}
	maps.Copy(labels, ours)
	labels[labelPod] = p.UID
	return labels, nil
}

// Network is the named network, or the only one.
func (w World) Network(of, name string, said bool) (string, error) {
	var all []string
	for _, k := range w.Networks {
		if k.Tenant == of {
			all = append(all, k.Name)
		}
	}
	slices.Sort(all)
	switch {
	case said && slices.Contains(all, name):
		return name, nil
	case said:
		return "", fmt.Errorf("tenant %s has no network %q: it has %s", of, name, list(all))
	case len(all) == 1:
		return all[0], nil
	}
	return "", fmt.Errorf("tenant %s has %s: choose one", of, list(all))
}

func list(names []string) string {
	switch {
	case len(names) == 0:
		return "no networks"
	case len(names) > 8:
		return fmt.Sprintf("%s and %d other networks", strings.Join(names[:8], ", "), len(names)-8)
	}
	return "networks " + strings.Join(names, ", ")
}

// NameFor is a unique name for the NIC of a pod or a claim. It begins like the pod's, as far as a DNS label allows.
func NameFor(name, uid string) string {
	name = strings.ReplaceAll(name, ".", "-")
	name = strings.TrimRight(name[:min(len(name), 46)], "-")
	uid = strings.ReplaceAll(uid, "-", "")
	return name + "-" + uid[:min(len(uid), 16)]
}
