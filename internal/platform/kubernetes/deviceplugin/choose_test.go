package deviceplugin

import (
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/platform/launch"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

func example() World {
	key := func(kind tenant.Kind, of, name string) tenant.Key {
		return tenant.Key{Kind: kind, Tenant: of, Name: name}
	}
	of := func(name string, namespaces ...string) *tenant.Tenant {
		return &tenant.Tenant{Metadata: tenant.Metadata{Name: name}, Spec: tenant.TenantSpec{Namespaces: namespaces}}
	}
	return World{
		Tenants:  []*tenant.Tenant{of("red", "web", "both"), of("blue", "train", "both"), of("empty", "void")},
		Networks: []tenant.Key{key(tenant.KindNetwork, "red", "front"), key(tenant.KindNetwork, "blue", "a"), key(tenant.KindNetwork, "blue", "b")},
		NICs:     []tenant.Key{key(tenant.KindNIC, "red", "db"), key(tenant.KindNIC, "blue", "other")},
	}
}

func TestChoose(t *testing.T) {
	for name, c := range map[string]struct {
		pod  Pod
		want string // TENANT/NAME, with + and the network if it is made; or a part of the error
	}{
		"the only network":        {Pod{Namespace: "web", Name: "shop-7d4", UID: "0a1b-2c3d"}, "red/shop-7d4-0a1b2c3d + front"},
		"a dotted name":           {Pod{Namespace: "web", Name: strings.Repeat("a.", 80), UID: "0a1b-2c3d-4e5f-6071-8293"}, "red/" + strings.Repeat("a-", 22) + "a-0a1b2c3d4e5f6071 + front"},
		"a network by annotation": {Pod{Namespace: "train", Name: "w", UID: "1", Annotations: map[string]string{"vrdma.io/network": "b", "other.io/x": "y"}}, "blue/w-1 + b"},
		"which network":           {Pod{Namespace: "train", Name: "w", UID: "1"}, "blue has networks a, b: choose one"},
		"no network":              {Pod{Namespace: "void", Name: "w", UID: "1"}, "has no networks"},
		"a foreign network":       {Pod{Namespace: "web", Name: "w", UID: "1", Annotations: map[string]string{"vrdma.io/network": "a"}}, `red has no network "a"`},
		"a declared NIC":          {Pod{Namespace: "web", Name: "w", UID: "1", Annotations: map[string]string{"vrdma.io/nic": "db"}}, "red/db"},
		"a foreign NIC":           {Pod{Namespace: "web", Name: "w", UID: "1", Annotations: map[string]string{"vrdma.io/nic": "other"}}, `red has no NIC "other"`},
		"a path for a NIC":        {Pod{Namespace: "web", Name: "w", UID: "1", Annotations: map[string]string{"vrdma.io/nic": "../blue/other"}}, "red has no NIC"},
		"NIC and network":         {Pod{Namespace: "web", Name: "w", UID: "1", Annotations: map[string]string{"vrdma.io/nic": "db", "vrdma.io/network": "front"}}, "leave out"},
		"no tenant":               {Pod{Namespace: "kube-system", Name: "w", UID: "1"}, "namespace kube-system belongs to no tenant"},
		"two tenants":             {Pod{Namespace: "both", Name: "w", UID: "1"}, "red and blue"},
		"an unknown annotation":   {Pod{Namespace: "web", Name: "w", UID: "1", Annotations: map[string]string{"vrdma.io/netwrok": "x"}}, "vrdma.io/netwrok is not known"},
		"a label of ours":         {Pod{Namespace: "web", Name: "w", UID: "1", Labels: map[string]string{"vrdma.io/node": "x"}}, "rename it"},
		"no UID":                  {Pod{Namespace: "web", Name: "w"}, "no UID"},
		"not an address":          {Pod{Namespace: "web", Name: "w", UID: "1", Annotations: map[string]string{"vrdma.io/address": "10.1"}}, "vrdma.io/address"},
	} {
		key, made, err := Choose(example(), "node1", &c.pod)
		if err != nil {
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v, want %q", name, err, c.want)
			}
			continue
		}
		got := key.Path()
		if made != nil {
			got += " + " + made.Spec.Network
			text, err := tenant.YAML(made)
			if err == nil {
				_, err = tenant.Parse("nic", text)
			}
			if err != nil {
				t.Errorf("%s: what is made cannot be declared: %v", name, err)
			}
		}
		if got != c.want {
			t.Errorf("%s: %s, want %q", name, got, c.want)
		}
	}
}

// TestChooseLabels: a created NIC has the pod's labels, by which policies select it, and labels with its node and its pod.
func TestChooseLabels(t *testing.T) {
	p := Pod{Namespace: "web", Name: "w", UID: "uid-1", Labels: map[string]string{"role": "db"}}
	_, made, err := Choose(example(), "node1", &p)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"role": "db", labelNode: "node1", labelPod: "uid-1"} {
		if got := made.Metadata.Labels[name]; got != want {
			t.Errorf("label %s is %q, want %q", name, got, want)
		}
	}
	if len(p.Labels) != 1 {
		t.Errorf("the pod's own labels were changed: %v", p.Labels)
	}
}

// declare returns the tenants and networks as a daemon has them.
func (w World) declare() (*tenant.World, error) {
	var objects []tenant.Object
	for _, t := range w.Tenants {
		objects = append(objects, &tenant.Tenant{Metadata: t.Metadata}) // one namespace of the example has two
	}
	for i, k := range w.Networks {
		n := &tenant.Network{Metadata: tenant.Metadata{Name: k.Name, Tenant: k.Tenant}}
		n.Spec.VNI = uint32(i + 1)
		n.Spec.Subnets = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i)}), 16)}
		objects = append(objects, n)
	}
	next, _, err := (&tenant.World{}).Next(tenant.Change{Put: objects}, nil)
	return next, err
}

// FuzzChoose checks that a pod gets only a NIC of the tenant of its namespace, whatever its names, labels and annotations are. A NIC that is
// made for it is one object when it is declared: nothing in the pod adds another object, or a label of ours.
func FuzzChoose(f *testing.F) {
	const line = "\n---\n{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: other, tenant: blue}}\n"
	for _, s := range [][7]string{
		{"web", "shop", "1-2"},
		{"web", "shop", "1", "db"},
		{"web", "shop", "1", "../blue/other"},
		{"web", "shop", "1", "blue/other"},
		{"train", "shop", "1", "", "b", "10.2.0.1"},
		{"train", "shop", "1", "", "../red/front", "10.1.0.1"},
		{"web", "shop", "1", "", "front", "fe80::1%../../etc"},
		{"web", "../../x", "1"},
		{"web", "shop", "/../../x"},
		{"web", "shop" + line, "1" + line},
		{"web", "shop", "1", "", "", "", "role" + line},
		{"web", "shop", "1", "", "", "", labelPod},
		{"web", "shop", "1", "", "", "", labelNode + " "},
		{"both", "shop", "1", "db"},
		{"", "", "", "", "", "", ""},
	} {
		f.Add(s[0], s[1], s[2], s[3], s[4], s[5], s[6])
	}
	world := example()
	tenants := map[string]string{"web": "red", "train": "blue", "void": "empty"}
	declared, err := world.declare()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, namespace, name, uid, nic, network, address, label string) {
		p := Pod{Namespace: namespace, Name: name, UID: uid, Annotations: make(map[string]string)}
		for k, v := range map[string]string{annotationNIC: nic, annotationNetwork: network, annotationAddress: address} {
			if v != "" {
				p.Annotations[k] = v
			}
		}
		if label != "" {
			p.Labels = map[string]string{label: label}
		}
		key, made, err := Choose(world, "node1", &p)
		if err != nil {
			return
		}
		if of := tenants[namespace]; of == "" || key.Tenant != of {
			t.Fatalf("a pod of namespace %q gets %v", namespace, key)
		}
		if made == nil {
			if !slices.Contains(world.NICs, key) {
				t.Fatalf("a pod gets %v, which is not declared", key)
			}
			return
		}
		if made.Metadata.Labels[labelNode] != "node1" || made.Metadata.Labels[labelPod] != uid {
			t.Fatalf("the labels are %q", made.Metadata.Labels)
		}
		text, err := tenant.YAML(made)
		if err != nil {
			return
		}
		objects, err := tenant.Parse("pod", text)
		if err != nil {
			return // the daemon refuses it
		}
		if _, _, err := declared.Next(tenant.Change{Put: objects}, rand.New(rand.NewPCG(1, 2))); err != nil {
			return // the daemon refuses it
		}
		if len(objects) != 1 || objects[0].Key() != key {
			t.Fatalf("%d objects are declared, want %v:\n%s", len(objects), key, text)
		}
		place := launch.Place{Socket: "/run/vrdma/vrdma.sock"}
		at, err := place.NIC(key.Tenant, key.Name)
		if err != nil {
			return
		}
		// The directory of a tenant, or of a hash if the names are long.
		if above := filepath.Dir(at.Gate()); above != place.NICs() && filepath.Dir(above) != place.NICs() {
			t.Fatalf("the gate of %v is %s", key, at.Gate())
		}
	})
}
