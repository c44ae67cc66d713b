package testbed

// KeepAwake keeps the processors out of idle states with programs/burn.c, in a control group of the lowest priority if possible.
// SCHED_IDLE alone ranks tasks within their own scheduler group only: on a busy machine they would use up the share of our group.
type KeepAwake struct {
	Command []string
	cgroups *Cgroups // nil: none could be made
}

// NewKeepAwake prepares the command; burn is the program.
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

// Close removes the control group.
func (k *KeepAwake) Close() error {
	if k.cgroups == nil {
		return nil
	}
	return k.cgroups.Remove()
}
