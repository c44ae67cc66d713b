package bench

// A keeper keeps the processors out of idle: programs/burn.c, in a control group of the
// lowest priority where one can be made. SCHED_IDLE alone ranks it below tasks of its own
// scheduler group only; on a busy machine it would use up what our group may have.
type keeper struct {
	argv   []string
	groups *groups // may be nil
}

// newKeeper prepares one; burn is the program.
func newKeeper(burn string) *keeper {
	k := &keeper{argv: []string{burn, "idle"}}
	g, err := newGroups()
	if err != nil {
		return k
	}
	if dir, err := g.addIdle("awake"); err == nil {
		k.argv = append(enterGroup(dir), k.argv...)
	}
	k.groups = g
	return k
}

// close removes the group.
func (k *keeper) close() error {
	if k.groups == nil {
		return nil
	}
	return k.groups.remove()
}
