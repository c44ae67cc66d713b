package testbed

// A KeepAwake keeps the processors out of idle: programs/burn.c, in a control group of the
// lowest priority where one can be made. SCHED_IDLE alone ranks it below tasks of its own
// scheduler group only; on a busy machine it would use up what our group may have.
type KeepAwake struct {
	Command []string
	cgroups *Cgroups // may be nil
}

// NewKeepAwake prepares one; burn is the program.
func NewKeepAwake(burn string) *KeepAwake {
	k := &KeepAwake{Command: []string{burn, "idle"}}
	g, err := NewCgroups()
	if err != nil {
		return k
	}
	if dir, err := g.AddIdle("awake"); err == nil {
		k.Command = append(EnterCgroup(dir), k.Command...)
	}
	k.cgroups = g
	return k
}

// Close removes the group.
func (k *KeepAwake) Close() error {
	if k.cgroups == nil {
		return nil
	}
	return k.cgroups.Remove()
}
