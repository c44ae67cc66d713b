package control

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"vrdma.dev/vrdma/internal/tenancy/store"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// Keys of the store. Declared objects are below spec/, and what was allocated for them below alloc/. Both are written
// in the same commit, so that neither exists without the other.
//
//	meta                      which store it is (package store)
//	generation                written by every commit; a commit is conditioned on it
//	spec/tenant/T             a Tenant
//	spec/net/T/N              a Network
//	spec/nic/T/N/I            a NIC of network N
//	spec/policy/T/P           a Policy
//	spec/host/H               a Host that does not run vrdma
//	alloc/vni/000064          T/N
//	alloc/addr/T/N/0a010203   I
//	place/T/N/I               the host of a NIC (placement.go); written by that host
//	host/H                    a Host that runs vrdma (registration.go); written by its daemon
//	live/H                    which daemon of the host lives; the only key that expires
const (
	keyGeneration = "generation"
	prefixSpec    = "spec/"
	prefixPlace   = "place/"
	prefixHost    = "host/"
	prefixLive    = "live/"
)

// keyOf is the key of an object.
func keyOf(o tenant.Object) string {
	switch o := o.(type) {
	case *tenant.Tenant:
		return "spec/tenant/" + o.Metadata.Name
	case *tenant.Network:
		return "spec/net/" + o.Metadata.Tenant + "/" + o.Metadata.Name
	case *tenant.NIC:
		return "spec/nic/" + o.Metadata.Tenant + "/" + o.Spec.Network + "/" + o.Metadata.Name
	case *tenant.Policy:
		return "spec/policy/" + o.Metadata.Tenant + "/" + o.Metadata.Name
	case *tenant.Fault:
		return "spec/fault/" + o.Metadata.Tenant + "/" + o.Metadata.Name
	case *tenant.Host:
		return "spec/host/" + o.Metadata.Name
	}
	panic(fmt.Sprintf("no object: %T", o))
}

// objectAt is the object of a key below spec/.
func objectAt(key string) (k tenant.Key, ok bool) {
	parts := strings.Split(key, "/")
	switch {
	case len(parts) == 3 && parts[1] == "tenant":
		k = tenant.Key{Kind: tenant.KindTenant, Name: parts[2]}
	case len(parts) == 3 && parts[1] == "host":
		k = tenant.Key{Kind: tenant.KindHost, Name: parts[2]}
	case len(parts) == 4 && parts[1] == "net":
		k = tenant.Key{Kind: tenant.KindNetwork, Tenant: parts[2], Name: parts[3]}
	case len(parts) == 4 && parts[1] == "policy":
		k = tenant.Key{Kind: tenant.KindPolicy, Tenant: parts[2], Name: parts[3]}
	case len(parts) == 4 && parts[1] == "fault":
		k = tenant.Key{Kind: tenant.KindFault, Tenant: parts[2], Name: parts[3]}
	case len(parts) == 5 && parts[1] == "nic":
		k = tenant.Key{Kind: tenant.KindNIC, Tenant: parts[2], Name: parts[4]}
	}
	return k, k.Valid()
}

// An allocation is the value of a key below alloc/.
type allocation struct {
	Schema int    `json:"schema"`
	To     string `json:"to"`
}

// allocations are the keys below alloc/ of an object, with their values.
func allocations(o tenant.Object) map[string]string {
	out := make(map[string]string)
	switch o := o.(type) {
	case *tenant.Network:
		if o.Spec.VNI != 0 {
			out[fmt.Sprintf("alloc/vni/%06x", o.Spec.VNI)] = o.Metadata.Tenant + "/" + o.Metadata.Name
		}
	case *tenant.NIC:
		for _, a := range o.Spec.Addresses {
			key := "alloc/addr/" + o.Metadata.Tenant + "/" + o.Spec.Network + "/" + hex.EncodeToString(a.AsSlice())
			out[key] = o.Metadata.Name
		}
	}
	return out
}

// encode is an object as the store has it.
func encode(o tenant.Object) ([]byte, error) {
	text, err := tenant.Marshal(o)
	if err != nil {
		return nil, err
	}
	rest, found := strings.CutPrefix(string(text), "{")
	if !found {
		return nil, fmt.Errorf("%v is not a JSON object: %.40q", o.Key(), text)
	}
	return fmt.Appendf(nil, `{"schema":%d,%s`, store.Schema, rest), nil
}

// A header is the beginning of every value.
type header struct {
	Schema int `json:"schema"`
}

// read refuses a value that is not JSON, or has a newer schema.
func (h *header) read(e store.Entry) error { return readValue(e, h, &h.Schema) }

// errNewer: a newer version has written the entry.
var errNewer = errors.New("a newer vrdma has written it")

// isObject reports whether a value is an object of any version. Other values may be overwritten.
func isObject(e store.Entry) bool {
	var o struct {
		Kind string `json:"kind"`
	}
	return json.Unmarshal(e.Value, &o) == nil && o.Kind != ""
}

// readValue decodes a value with a schema.
func readValue(e store.Entry, into any, schema *int) error {
	if err := json.Unmarshal(e.Value, into); err != nil {
		return fmt.Errorf("store entry %.200q: %w", e.Key, err)
	}
	switch {
	case *schema > store.Schema:
		return fmt.Errorf("store entry %.200q has schema %d, this version reads %d: %w", e.Key, *schema, store.Schema, errNewer)
	case *schema < 1:
		return fmt.Errorf("store entry %.200q has schema %d, this version reads %d", e.Key, *schema, store.Schema)
	}
	return nil
}

// decode reads an entry below spec/. It checks that the value is an object, and the one of its key.
func decode(e store.Entry) (tenant.Object, error) {
	var head header
	if err := head.read(e); err != nil {
		return nil, err
	}
	o, err := tenant.Unmarshal(e.Value)
	if err != nil {
		return nil, fmt.Errorf("store entry %.200q: %w", e.Key, err)
	}
	if key := keyOf(o); key != e.Key {
		return nil, fmt.Errorf("store entry %.200q is the object of %.200q", e.Key, key)
	}
	return o, nil
}

// writesOf are the writes of effects: every object that changed, and its allocations.
func writesOf(effects []tenant.Effect) ([]store.Write, error) {
	gone, put := make(map[string]struct{}), make(map[string][]byte)
	for _, e := range effects {
		if !e.Changed() {
			continue
		}
		if e.Old != nil {
			gone[keyOf(e.Old)] = struct{}{}
			for key := range allocations(e.Old) {
				gone[key] = struct{}{}
			}
			if n, is := e.Old.(*tenant.NIC); is && e.New == nil {
				gone[placementKey(n)] = struct{}{}
			}
		}
		if e.New == nil {
			continue
		}
		value, err := encode(e.New)
		if err != nil {
			return nil, err
		}
		put[keyOf(e.New)] = value
		for key, to := range allocations(e.New) {
			value, err := json.Marshal(allocation{store.Schema, to})
			if err != nil {
				return nil, err
			}
			put[key] = value
		}
	}
	writes := make([]store.Write, 0, len(gone)+len(put))
	for key, value := range put {
		writes = append(writes, store.Write{Key: key, Value: value})
	}
	for key := range gone {
		if _, again := put[key]; !again {
			writes = append(writes, store.Write{Key: key, Delete: true})
		}
	}
	return writes, nil
}
