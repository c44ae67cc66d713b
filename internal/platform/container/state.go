package container

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
)

// A State is what an OCI runtime tells a hook, on stdin.
type State struct {
	ID          string            `json:"id"`
	Pid         int               `json:"pid"`
	Bundle      string            `json:"bundle"`
	Annotations map[string]string `json:"annotations"`
}

// mostState bounds it.
const mostState = 1 << 20

// ReadState reads it.
func ReadState(r io.Reader) (*State, error) {
	s := new(State)
	err := json.NewDecoder(io.LimitReader(r, mostState)).Decode(s)
	if err == nil && s.ID == "" {
		err = errors.New("it has no id")
	}
	if err != nil {
		return nil, fmt.Errorf("the container's state, which an OCI runtime gives to its hooks on stdin: %w", err)
	}
	return s, nil
}

// identifier is how engines name containers, of which people use the first twelve digits.
var identifier = regexp.MustCompile(`^[0-9a-f]{64}$`)

// podNames are the annotations with a pod's namespace and name, as containerd and CRI-O have them.
var podNames = [][2]string{
	{"io.kubernetes.cri.sandbox-namespace", "io.kubernetes.cri.sandbox-name"},
	{"io.kubernetes.pod.namespace", "io.kubernetes.pod.name"},
}

// NIC is the name of a NIC that is made for the container.
func (s *State) NIC() string {
	if identifier.MatchString(s.ID) {
		return "c-" + s.ID[:12]
	}
	sum := sha256.Sum256([]byte(s.ID))
	return "c-" + hex.EncodeToString(sum[:6])
}

// Name is what people call the container: its pod, else what the engine's lists show.
func (s *State) Name() string {
	for _, p := range podNames {
		if space, name := s.Annotations[p[0]], s.Annotations[p[1]]; space != "" && name != "" {
			return space + "/" + name
		}
	}
	if identifier.MatchString(s.ID) {
		return s.ID[:12]
	}
	return s.ID
}
