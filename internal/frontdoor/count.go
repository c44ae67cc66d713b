package frontdoor

// Connections by label: what `vrdma run --sockets` asks when its program has ended.

// maxCounted bounds the labels that are remembered until somebody asks.
const maxCounted = 1024

// remember keeps the number of a process's connections for whoever gave it its label.
func (s *Server) remember(p *process) {
	n := p.cm.Established // nobody touches it any more
	if p.label == "" || n == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.counted == nil {
		s.counted = make(map[string]uint64)
	}
	if _, known := s.counted[p.label]; known || len(s.counted) < maxCounted {
		s.counted[p.label] += n
	}
}

// countConnections sums up the processes with a label, those that are gone included,
// which are forgotten. A label is a secret between the daemon and who made it up.
func (s *Server) countConnections(label string, who *peer, all bool) uint64 {
	if label == "" || s.cfg.CMA == nil {
		return 0
	}
	s.mu.Lock()
	n := s.counted[label]
	delete(s.counted, label)
	var live []*process
	for _, p := range s.processes {
		if p.label == label && (all || p.sameUser(who)) {
			live = append(live, p)
		}
	}
	s.mu.Unlock()
	s.looks.of(all).visit(s, func() {
		for _, p := range live {
			n += p.cm.Established
		}
	})
	return n
}
