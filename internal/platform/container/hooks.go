package container

import (
	"encoding/json"
	"slices"
)

// A Hook is a program that the OCI runtime runs while it creates or deletes a container. Its stdin has the container's state.
type Hook struct {
	When string   `json:"hookName"` // OCI's name: createRuntime, createContainer, …
	Path string   `json:"path"`
	Args []string `json:"args,omitempty"`
	// Timeout, in seconds, bounds a hook that hangs.
	Timeout int `json:"timeout,omitempty"`
}

// The times at which hooks run.
const (
	CreateRuntime   = "createRuntime"   // in the engine's namespaces
	PostStop        = "poststop"        // in the engine's namespaces, when the container is deleted
	CreateContainer = "createContainer" // in the container's namespaces, after its mounts and before pivot_root
)

// hookTimeout is the timeout of vrdma's hooks, in seconds: each takes some milliseconds.
const hookTimeout = 10

// Hooks returns the hooks of a container with a NIC. vrdma is the path of vrdma in the engine's mount namespace; "": no hooks.
// The first hook checks the container's root and binds a declared NIC; the container does not start if another one has the NIC. The
// second releases the NIC. The third merges /etc/ld.so.preload with the image's.
func Hooks(vrdma, socket, device string) []Hook {
	if vrdma == "" {
		return nil
	}
	return []Hook{
		{When: CreateRuntime, Path: vrdma, Args: []string{"vrdma", "--socket", socket, "oci-hook", "look", device}, Timeout: hookTimeout},
		{When: CreateContainer, Path: vrdma, Args: []string{"vrdma", "oci-hook", "merge"}, Timeout: hookTimeout},
		{When: PostStop, Path: vrdma, Args: []string{"vrdma", "--socket", socket, "oci-hook", "end", device}, Timeout: hookTimeout},
	}
}

// NetworkHooks returns the hooks of a container that gets a NIC in a network. They create and bind the NIC and check the root, mount
// the NIC's directory, and delete the NIC.
func NetworkHooks(vrdma, socket, network string) []Hook {
	if vrdma == "" {
		return nil
	}
	return []Hook{
		{When: CreateRuntime, Path: vrdma, Args: []string{"vrdma", "--socket", socket, "oci-hook", "make", network}, Timeout: hookTimeout},
		{When: CreateContainer, Path: vrdma, Args: []string{"vrdma", "--socket", socket, "oci-hook", "mount", network}, Timeout: hookTimeout},
		{When: CreateContainer, Path: vrdma, Args: []string{"vrdma", "oci-hook", "merge"}, Timeout: hookTimeout},
		{When: PostStop, Path: vrdma, Args: []string{"vrdma", "--socket", socket, "oci-hook", "unmake", network}, Timeout: hookTimeout},
	}
}

// addHooks adds the hooks that are missing.
func (b *Bundle) addHooks(hooks []Hook) error {
	if len(hooks) == 0 {
		return nil
	}
	all := make(map[string][]json.RawMessage)
	if err := b.get("hooks", &all); err != nil {
		return err
	}
	if all == nil { // "hooks": null
		all = make(map[string][]json.RawMessage)
	}
	for _, h := range hooks {
		text, err := json.Marshal(ociHook{Path: h.Path, Args: h.Args, Timeout: h.Timeout})
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(all[h.When], func(old json.RawMessage) bool { return string(old) == string(text) }) {
			all[h.When] = append(all[h.When], text)
		}
	}
	return b.set("hooks", all)
}

// An ociHook is a hook in config.json, in the list named after its time.
type ociHook struct {
	Path    string   `json:"path"`
	Args    []string `json:"args,omitempty"`
	Timeout int      `json:"timeout,omitempty"`
}
