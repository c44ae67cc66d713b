package control

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"vrdma/internal/store"
	"vrdma/internal/tenant"
)

// Keys of the store. What a person declares is below spec/, what was allocated for it below
// alloc/: written in the same commit, so that one is never there without the other.
//
//	meta                      which store it is (package store)
//	generation                written by every commit; a commit is conditioned on it
//	spec/tenant/T             a Tenant
//	spec/net/T/N              a Network
//	spec/nic/T/N/I            a NIC of network N
//	spec/policy/T/P           a Policy
//	alloc/vni/000064          T/N
//	alloc/addr/T/N/0a010203   I
const (
	keyGeneration = "generation"
	prefixSpec    = "spec/"
	prefixAlloc   = "alloc/"
)

// keyOf is where an object is.
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
	}
	panic(fmt.Sprintf("no object: %T", o))
}

// An allocation is the value of a key below alloc/.
type allocation struct {
	Schema int    `json:"schema"`
	To     string `json:"to"`
}

// allocations are the keys that an object holds, and what they say.
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

// errNewer: a newer version has written it.
var errNewer = errors.New("a newer vrdma has written it")

// decode reads an entry below spec/. Nothing is believed: neither that it is an object, nor
// that it is the one that its key says.
func decode(e store.Entry) (tenant.Object, error) {
	var head struct {
		Schema int `json:"schema"`
	}
	if err := json.Unmarshal(e.Value, &head); err != nil {
		return nil, fmt.Errorf("store entry %.200q: %w", e.Key, err)
	}
	switch {
	case head.Schema > store.Schema:
		return nil, fmt.Errorf("store entry %.200q has schema %d, this version reads %d: %w", e.Key, head.Schema, store.Schema, errNewer)
	case head.Schema < 1:
		return nil, fmt.Errorf("store entry %.200q has schema %d, this version reads %d", e.Key, head.Schema, store.Schema)
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

// writesOf are what effects write: every object that changed and its allocations.
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

// A snapshot is what the store said at one revision.
type snapshot struct {
	world      *tenant.World
	revision   int64
	generation int64 // the revision of that key; 0: there is none
	named      bool  // the store has its meta
	meta       store.Meta
	problems   []string // entries that were left out, and why
	// newer are the keys that a newer vrdma has written: what they say is not known here, and
	// must not be overwritten.
	newer map[string]bool
}

// load reads the store. Entries that are no part of a world are problems; only a store that
// cannot be read, or is of a newer version as a whole, is an error. Of an
// entry that cannot be read, the object that it was in old stays.
func load(s store.Store, old *tenant.World) (*snapshot, error) {
	entries, revision, err := s.List("")
	if err != nil {
		return nil, err
	}
	snap := &snapshot{revision: revision}
	if snap.meta, snap.named, err = store.Identify(s); err != nil {
		return nil, err
	}
	before := make(map[string]tenant.Object)
	for _, o := range old.Objects("") {
		before[keyOf(o)] = o
	}
	var objects []tenant.Object
	for _, e := range entries {
		switch {
		case e.Key == keyGeneration:
			snap.generation = e.Revision
		case strings.HasPrefix(e.Key, prefixSpec):
			o, err := decode(e)
			if err != nil {
				snap.problems = append(snap.problems, err.Error())
				if errors.Is(err, errNewer) {
					if snap.newer == nil {
						snap.newer = make(map[string]bool)
					}
					snap.newer[e.Key] = true
				}
				if o = before[e.Key]; o == nil {
					continue
				}
			}
			objects = append(objects, o)
		}
	}
	snap.world, err = tenant.NewWorld(objects)
	var list tenant.Errors
	switch {
	case errors.As(err, &list):
		for _, e := range list {
			snap.problems = append(snap.problems, "store: "+e.Error())
		}
	case err != nil:
		snap.problems = append(snap.problems, "store: "+err.Error())
	}
	if snap.world == nil {
		snap.world = &tenant.World{}
	}
	return snap, nil
}
