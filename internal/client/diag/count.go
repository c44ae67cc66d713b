package diag

// This file counts connections by label, for `vrdma run --sockets` after its program has ended.

// maxCounted limits the number of labels that are kept.
const maxCounted = 1024

// Remember stores the number of connections of an ended program under its label.
func (d *Service) Remember(label string, n uint64) {
	if label == "" || n == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.counted == nil {
		d.counted = make(map[string]uint64)
	}
	if _, known := d.counted[label]; known || len(d.counted) < maxCounted {
		d.counted[label] += n
	}
}

// count returns the sum of the programs with a label and forgets the ended ones. A label is a secret between the daemon and its creator.
func (d *Service) count(label string, v *View) uint64 {
	if label == "" {
		return 0
	}
	d.mu.Lock()
	n := d.counted[label]
	delete(d.counted, label)
	d.mu.Unlock()
	var live []Program
	for _, p := range d.cfg.Clients.Programs() {
		if p.Of.Label == label && p.CM != nil && v.program(&p) {
			live = append(live, p)
		}
	}
	d.looks.of(v.All).look(d.cfg.Loop, func() {
		for _, p := range live {
			n += p.CM.Established
		}
	})
	return n
}
