package show

import (
	"fmt"
	"time"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/tenancy/store"
)

// storeText formats the state of a store.
func storeText(s *protocol.StoreStatus, now time.Time) string {
	if s.State == "own" {
		return s.Name + ", of this daemon alone"
	}
	text := fmt.Sprintf("%s, %s", s.Name, s.State)
	if s.State != string(store.InStep) {
		since := "never heard of"
		if !s.Heard.IsZero() {
			since = fmt.Sprintf("last heard of %s ago, %s", age(now, s.Heard), s.Heard.Format(time.RFC3339))
		}
		text += ": " + since
	}
	if s.Why != "" {
		text += ": " + Plain(s.Why)
	}
	if n := len(s.Problems); n > 0 {
		text += fmt.Sprintf("; %d entries are left out, the first: %s", n, Plain(s.Problems[0]))
	}
	return text
}
