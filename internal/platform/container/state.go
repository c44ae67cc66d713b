package container

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"

	"vrdma.dev/vrdma/internal/printable"
)

// A State is the container's state, which an OCI runtime writes to a hook's stdin.
type State struct {
	ID          string            `json:"id"`
	Pid         int               `json:"pid"`
	Bundle      string            `json:"bundle"`
	Annotations map[string]string `json:"annotations"`
}

// mostState bounds a state.
const mostState = 1 << 20

// ReadState parses a state.
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

// identifier matches an engine's container ID. People use its first twelve digits.
var identifier = regexp.MustCompile(`^[0-9a-f]{64}$`)

// podNames are containerd's and CRI-O's annotations with a pod's namespace and name.
var podNames = [][2]string{
	{"io.kubernetes.cri.sandbox-namespace", "io.kubernetes.cri.sandbox-name"},
	{"io.kubernetes.pod.namespace", "io.kubernetes.pod.name"},
}

// NIC returns the name of a NIC that is created for the container.
func (s *State) NIC() string {
	if identifier.MatchString(s.ID) {
		return "c-" + s.ID[:12]
	}
	sum := sha256.Sum256([]byte(s.ID))
	return "c-" + hex.EncodeToString(sum[:6])
}

// Name returns the container's name for people: its pod, else the short ID that engines show.
func (s *State) Name() string {
	for _, p := range podNames {
		if space, name := s.Annotations[p[0]], s.Annotations[p[1]]; space != "" && name != "" {
			return printable.Text(space + "/" + name)
		}
	}
	if identifier.MatchString(s.ID) {
		return s.ID[:12]
	}
	return printable.Text(s.ID)
}
