package engine

import "vrdma.dev/vrdma/internal/device/nic"

// A Guarded is a NIC and its new rules.
type Guarded struct {
	NIC   *nic.NIC
	Guard nic.Guard // nil: none
}

const (
	// guardsAtOnce is how many NICs get new rules in one command.
	guardsAtOnce = 64
	// judgedAtOnce is how many queue pairs and connections one command checks again. That takes
	// half a millisecond if all of them have to end. Others have their turns in between.
	judgedAtOnce = 64
)

// SetGuards gives NICs new rules and checks their queue pairs and connections again. It returns when
// those that are no longer allowed have ended. Any goroutine but the loop may call it, one at a time.
func (e *Engine) SetGuards(list []Guarded) error {
	for rest := list; len(rest) > 0; {
		n := min(len(rest), guardsAtOnce)
		if err := e.Do(func() {
			for _, g := range rest[:n] {
				g.NIC.SetGuard(g.Guard)
			}
		}); err != nil {
			return err
		}
		rest = rest[n:]
	}
	for len(list) > 0 {
		if err := e.Do(func() {
			for most := judgedAtOnce; len(list) > 0 && most > 0; most-- {
				if list[0].NIC.Rejudge(1) {
					continue
				}
				list = list[1:]
			}
		}); err != nil {
			return err
		}
	}
	return nil
}
