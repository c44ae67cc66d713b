package rack

import (
	"vrdma/internal/overlay"
)

// Connect says which of the networks are between hosts, and who is where: a new map whenever that
// has changed. NICs and maps may come in any order.
func (r *Rack) Connect(m *overlay.Map) error {
	return r.onLoop(func() { r.cfg.NICs.SetMap(m) })
}
