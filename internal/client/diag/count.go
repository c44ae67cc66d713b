package diag

// Connections by label: what `vrdma run --sockets` asks when its program has ended.

// maxCounted bounds the labels that are remembered until somebody asks.
const maxCounted = 1024

// Remember keeps the number of connections that a program has had, for whoever gave it its
// label.
func (d *Desk) Remember(label string, n uint64) {
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

// count sums up the programs with a label, those that are gone included, which are
// forgotten. A label is a secret between the daemon and who made it up.
func (d *Desk) count(label string, v *View) uint64 {
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
