package dra

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"vrdma.dev/vrdma/internal/platform/kubernetes/deviceplugin"
	"vrdma.dev/vrdma/internal/platform/kubernetes/kubelet"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// A record is a file about a claim. It is written before anything is made for the claim, and removed after that is
// gone.
type record struct {
	Claim   kubelet.Claim `json:"claim"`
	NIC     tenant.Key    `json:"nic"`
	Made    bool          `json:"made"` // made for the claim, and deleted with it
	Slot    string        `json:"slot"`
	Request string        `json:"request"`
	Gone    bool          `json:"gone,omitempty"` // the claim is gone; the NIC may still exist
}

const (
	recordEnd  = ".json"
	damagedEnd = ".damaged" // after recordEnd
)

// goodUID reports whether a UID can be the name of a file.
func goodUID(uid string) bool {
	if len(uid) < 1 || len(uid) > 64 {
		return false
	}
	for _, c := range uid {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return uid[0] != '-'
}

func (n *Node) recordFile(uid string) string { return filepath.Join(n.Dir(), uid+recordEnd) }

// load reads a claim's record; nil: there is none. A damaged record is logged and renamed, as if there were none,
// because one pod's claim must not keep others from their NICs. Its NIC, if one was made, has no record, and the sweep
// deletes it unless the kubelet prepares the claim again. A file that cannot be read is an error: the record may be
// intact, and its pod running. mu is held.
func (n *Node) load(uid string) (*record, error) {
	text, err := os.ReadFile(n.recordFile(uid))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var r record
	err = json.Unmarshal(text, &r)
	if err == nil && (r.Claim.UID != uid || !slotLike(r.Slot)) {
		err = errors.New("it has another claim, or no slot")
	}
	if err != nil {
		aside := n.recordFile(uid) + damagedEnd
		err = errors.Join(err, os.Rename(n.recordFile(uid), aside))
		n.Log.Warn("a claim's record is not what we have written, and is put aside", "claim", uid, "file", aside, "error", err)
		return nil, nil
	}
	return &r, nil
}

// keep writes a record.
func (n *Node) keep(r *record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return deviceplugin.Replace(n.recordFile(r.Claim.UID), append(text, '\n'))
}

// drop removes a record.
func (n *Node) drop(r *record) error {
	err := os.Remove(n.recordFile(r.Claim.UID))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// records are all undamaged records. mu is held.
func (n *Node) records() (all []*record, err error) {
	entries, err := os.ReadDir(n.Dir())
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		uid, is := strings.CutSuffix(e.Name(), recordEnd)
		if !is || !goodUID(uid) {
			continue
		}
		r, err := n.load(uid)
		if err != nil {
			return nil, err
		}
		if r != nil {
			all = append(all, r)
		}
	}
	return all, nil
}
