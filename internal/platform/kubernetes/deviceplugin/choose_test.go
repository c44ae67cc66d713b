package deviceplugin

import (
	"strings"
	"testing"

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
