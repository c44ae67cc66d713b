package memory

import "vrdma.dev/vrdma/internal/budget"

// What a process is charged for its registered memory:
//
//   - Memory: the bytes of its regions, or the pages of its backing, whichever is more. The
//     pages count because the process has to remove them when a region is released. And the
//     daemon may have allocated some of them: where the process punched a hole after
//     registering, the daemon's copy allocates the page, and the kernel charges it to the
//     daemon's control group. The daemon gets no event when the process removes pages, so
//     Recount counts them.
//   - Holes: bytes of a region that were never written when it was registered. The daemon's
//     first copy allocates these pages, too, so the limit for them is much lower.
//   - Mappings: one for each window, and Files: one for each window of a shared file.
//   - State: what the pieces of a region take of the daemon's heap.

var windowBill = budget.Bill{budget.Mappings: 1, budget.State: 2 << 10}

// bill is what a window is charged. One of a shared file counts for the file's descriptor too:
// few files have several.
func (w *window) bill() budget.Bill {
	b := windowBill
	if w.file != nil {
		b[budget.Files] = 1
		b[budget.Mappings] += uint64(len(w.file.segment)) >> windowBits
	}
	return b
}

// pieceState is the heap that one piece of a region takes: see regionPiece, held, and
// the garbage collector's room to grow.
const pieceState = 192

// charges is what a space has been charged. The space's mu guards it.
type charges struct {
	account *budget.Account
	memory  uint64 // of kind Memory
	pages   uint64 // bytes in the backing when it was looked at last
}

// SetAccount sets the account that the space is charged to. It is called before the first region.
func (s *Space) SetAccount(a *budget.Account) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.charges.account = a
}

// settle makes the charge for Memory what mapped bytes of regions need. It fails only
// where that is more than before.
func (c *charges) settle(mapped uint64) error {
	want := max(mapped, c.pages)
	if want <= c.memory {
		c.account.Refund(budget.Bill{budget.Memory: c.memory - want})
		c.memory = want
		return nil
	}
	if err := c.account.Charge(budget.Bill{budget.Memory: want - c.memory}); err != nil {
		return err
	}
	c.memory = want
	return nil
}

// room says whether settle could charge for mapped bytes of regions.
func (c *charges) room(mapped uint64) error {
	before := c.memory
	err := c.settle(max(mapped, before))
	if err == nil {
		c.account.Refund(budget.Bill{budget.Memory: c.memory - before})
		c.memory = before
	}
	return err
}

// charge charges a region that is about to be made; s.mapped has it already. s.mu is
// held.
func (r *Region) charge(extents []Extent) error {
	s := r.space
	if s.charges.account == nil {
		return nil
	}
	if err := s.recount(); err != nil {
		return err
	}
	// An extent is cut at window borders.
	n := uint64(len(extents)) + r.length>>windowBits + 1
	bill := budget.Bill{budget.State: n * pieceState}
	if err := s.charges.account.Charge(bill); err != nil {
		return err
	}
	r.bill = bill
	return nil
}

// Recount charges for the pages that the backing has now.
func (s *Space) Recount() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recount()
}

// recount is Recount. It fails only where that is more than before. s.mu is held.
func (s *Space) recount() error {
	if !s.closed {
		if used, err := s.backing.Used(); err == nil {
			s.charges.pages = used
		}
	}
	return s.charges.settle(s.mapped)
}

// chargeHoles charges what was never touched.
func (r *Region) chargeHoles(n uint64) error {
	s := r.space
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.charges.account.Charge(budget.Bill{budget.Holes: n}); err != nil {
		return err
	}
	r.bill[budget.Holes] = n
	return nil
}

// end refunds what is charged for pages that no region covers. s.mu is held, and the
// backing is about to be closed.
func (c *charges) end(mapped uint64) {
	c.pages = 0
	c.settle(mapped) // it only shrinks
}
