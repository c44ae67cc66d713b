package container

import (
	"encoding/json"
	"slices"
)

// A Hook is a program that the OCI runtime runs while it makes a container. It has the container's state on its stdin.
type Hook struct {
	When string   `json:"hookName"` // as OCI names it: createRuntime, createContainer, …
	Path string   `json:"path"`
	Args []string `json:"args,omitempty"`
	// Timeout, in seconds, so that a hook which hangs does not hold up the container for good.
	Timeout int `json:"timeout,omitempty"`
}

// The hooks' moments.
const (
	CreateRuntime   = "createRuntime"   // in the engine's namespaces
	PostStop        = "poststop"        // there, when the container is deleted
	CreateContainer = "createContainer" // in the container's, when its mounts are made and its root is not entered yet
)

// hookTimeout is that of ours, in seconds: each takes some milliseconds.
const hookTimeout = 10

// Hooks are those of a container with a NIC. vrdma is the path of our program, as the engine sees it; "": none.
// One looks at the container's root and says what keeps programs there from the NIC, and binds a declared NIC to the container: if
// another one has it, this one does not start. One undoes that. One makes /etc/ld.so.preload one file with that of the image.
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

// NetworkHooks are those of a container that gets a NIC in a network: one makes the NIC, binds it to the container and looks as above,
// one mounts the NIC's directory, one takes the NIC away.
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

// addHooks adds those that are not there.
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

// An ociHook is a hook in config.json, where the moment is the name of a list.
type ociHook struct {
	Path    string   `json:"path"`
	Args    []string `json:"args,omitempty"`
	Timeout int      `json:"timeout,omitempty"`
}
