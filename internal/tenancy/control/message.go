package control

import (
	"encoding/json"
	"strings"
	"time"

	"vrdma.dev/vrdma/internal/events"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// An Op is the operation of a request.
type Op string

const (
	OpApply      Op = "apply"       // Objects, Force, DryRun
	OpDelete     Op = "delete"      // Keys, Force, DryRun
	OpGet        Op = "get"         // Select
	OpWatch      Op = "watch"       // Select; a stream
	OpDescribe   Op = "describe"    // Select, of one object
	OpEvents     Op = "events"      // Select, Last, Follow; a stream
	OpPolicyTest Op = "policy test" // Policy, Objects
	OpExport     Op = "export"
	OpImport     Op = "import" // Objects, Replace, DryRun
	// Operations of container engines, see workloads.go; for the operator only.
	OpBind   Op = "bind"   // Bindings, of one
	OpUnbind Op = "unbind" // Bindings
	OpBound  Op = "bound"
	OpTell   Op = "tell" // Container
)

// A Request is sent by a tool, one for each connection.
type Request struct {
	Op      Op              `json:"op"`
	Objects Objects         `json:"objects,omitempty"`
	Keys    []tenant.Key    `json:"keys,omitempty"`
	Select  Selection       `json:"select,omitzero"`
	Policy  *PolicyQuestion `json:"policy,omitempty"`
	DryRun  bool            `json:"dryRun,omitempty"`
	Force   bool            `json:"force,omitempty"`
	Replace bool            `json:"replace,omitempty"`
	// For apply: Prune also deletes what the tenants among Objects have besides. Changes makes Results contain the objects.
	Prune   bool `json:"prune,omitempty"`
	Changes bool `json:"changes,omitempty"`
	Follow  bool `json:"follow,omitempty"`
	Last    int  `json:"last,omitempty"`

	Bindings  []Binding  `json:"bindings,omitempty"`
	Container *Container `json:"container,omitempty"`
}

// A File is YAML as a user wrote it; the name is for error messages. The tool parses it and sends objects to the
// daemon, and adds file and line to the daemon's errors.
type File struct {
	Name, Text string
}

// A Selection selects objects; empty fields match everything.
type Selection struct {
	Kind   tenant.Kind       `json:"kind,omitempty"`
	Tenant string            `json:"tenant,omitempty"`
	Name   string            `json:"name,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
}

// Matches reports whether an object is selected.
func (s *Selection) Matches(k tenant.Key, labels map[string]string) bool {
	of := k.Tenant
	if k.Kind == tenant.KindTenant {
		of = k.Name
	}
	if s.Kind != "" && s.Kind != k.Kind || s.Tenant != "" && s.Tenant != of || s.Name != "" && s.Name != k.Name {
		return false
	}
	for name, value := range s.Labels {
		if have, found := labels[name]; !found || have != value {
			return false
		}
	}
	return true
}

// A Reply answers a Request. A stream begins with an empty reply, or an error. Then comes a reply for each change or
// event.
type Reply struct {
	Error *Error `json:"error,omitempty"`

	Revision int64          `json:"revision,omitempty"` // of the store, where the answer is of one revision
	Results  []Result       `json:"results,omitempty"`  // apply, delete, import
	Warnings []string       `json:"warnings,omitempty"` // apply, delete, import: what the Provisioner cannot do yet, and surprises; tell; get: why the answer may be old
	Items    []Item         `json:"items,omitempty"`    // get, describe, watch
	Host     string         `json:"host,omitempty"`     // get: the host of the answering daemon, for callers that may see hosts
	Events   []events.Event `json:"events,omitempty"`   // describe, events
	InUse    []string       `json:"inUse,omitempty"`    // describe: its users
	Policy   []PolicyAnswer `json:"policy,omitempty"`
	Text     string         `json:"text,omitempty"`     // export
	Bindings []Binding      `json:"bindings,omitempty"` // bound

	Interface *Interface `json:"interface,omitempty"` // bind, with Plug
	// Synced is true on the reply of a watch that completes the initial list.
	Synced bool `json:"synced,omitempty"`
}

// An Error says why a request failed, each problem by itself.
type Error struct {
	Problems []string `json:"problems"`
	// Errors are the first of the Problems, about objects that were sent, so that file and line can be added.
	Errors tenant.Errors `json:"errors,omitempty"`
	// Denied: the caller is not authorised.
	Denied bool `json:"denied,omitempty"`
	// InUse: an object is in use; force overrides that.
	InUse bool `json:"inUse,omitempty"`
}

func (e *Error) Error() string { return strings.Join(e.Problems, "\n") }

// A Result is what happened to one object, or would in a dry run.
type Result struct {
	Key tenant.Key `json:"key"`
	// Verb is created, changed, unchanged or deleted, as tenant.Effect says.
	Verb string `json:"verb"`
	// Old and New are the object as JSON, if it has changed and the request has Changes; "": there is none.
	Old string `json:"old,omitempty"`
	New string `json:"new,omitempty"`
}

// Verbs of a Result.
const (
	Created   = "created"
	Changed   = "changed"
	Unchanged = "unchanged"
	Deleted   = "deleted"
)

// An Item is an object as the daemon has it.
type Item struct {
	Key tenant.Key `json:"key"`
	// Object is the object in JSON, as a file would have it, with what was allocated. tenant.Unmarshal reads it.
	Object json.RawMessage `json:"object,omitempty"`
	Status *Status         `json:"status,omitempty"` // of a NIC, of a host, of a Fault
	// Quota is what a tenant holds on this host, and its limits.
	Quota []QuotaUse `json:"quota,omitempty"`
	// Forgeable, of a network: with way vxlan: its hosts of which every user can forge packets in the network. See forgeable.
	Forgeable []string `json:"forgeable,omitempty"`
	// Deleted: the object was deleted during a watch.
	Deleted bool `json:"deleted,omitempty"`
}

// A Status is the status of a NIC on this host, of a host, or of a Fault.
type Status struct {
	State  State     `json:"state"`
	Reason string    `json:"reason,omitempty"` // why it is not ready
	Since  time.Time `json:"since,omitzero"`
	// Host is the host that has the NIC; "": no program has opened it yet.
	Host string `json:"host,omitempty"`
	// Alone, of a host: its daemon has a store of its own, and so every NIC that is not pinned to another host.
	Alone bool `json:"alone,omitempty"`
	// Socket is the path of the NIC's listener on this host, where it is ready.
	Socket string `json:"socket,omitempty"`
	// Hits, of a Fault: how often its rules have hit NICs of this host; and NICs, how many it applies to.
	Hits uint64 `json:"hits,omitempty"`
	NICs int    `json:"nics,omitempty"`
	// Quota is the item's, for tables.
	Quota []QuotaUse `json:"-"`
	// Forgeable is the item's, for tables.
	Forgeable []string `json:"-"`
}

// A State is the state of a NIC or a host.
type State string

const (
	Ready     State = "ready"
	Failed    State = "failed"    // the Provisioner failed; it is tried again
	Elsewhere State = "elsewhere" // it is on another host
	// Of hosts: no heartbeat; the store, which has the heartbeats, does not answer; no heartbeat is expected.
	Gone      State = "gone"
	Unknown   State = "unknown"
	Unwatched State = "unwatched"
)

// A PolicyQuestion asks whether From may connect to To, TENANT/NAME each. Objects of the request are applied for the
// question only.
type PolicyQuestion struct {
	From string        `json:"from"`
	To   string        `json:"to"`
	Type tenant.QPType `json:"type,omitempty"` // empty: rc
	// Service is manual, or a port as in tcp:7471; empty: all of them.
	Service string `json:"service,omitempty"`
}

// A PolicyAnswer is the rules' answer for a range of services.
type PolicyAnswer struct {
	Service    string `json:"service"` // manual, tcp, udp:7-9
	Allowed    bool   `json:"allowed"`
	Operations string `json:"operations"` // send, read; none
	Rule       string `json:"rule"`       // the answer on one line, with the rule that decided
	// Steps are the decisions of each side.
	Steps []string `json:"steps,omitempty"`
}
