package bench

import (
	"bufio"
	"context"
	"fmt"
	"strings"
	"syscall"
)

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

// awake is a probe that runs while burner (programs/burn.c) keeps the processors busy.
func (l *Lab) awake(p Probe, burner []string) Probe {
	return l.alongside(p, "awake", burner)
}

// alongside is a probe that runs beside a program that says "ready" and ends with its input.
func (l *Lab) alongside(p Probe, name string, argv []string) Probe {
	measure := p.Measure
	p = on(p, name)
	p.Measure = func(ctx context.Context) (Reading, error) {
		other, err := l.engage(ctx, argv...)
		if err != nil {
			return Reading{}, err
		}
		defer other.dismiss()
		return measure(ctx)
	}
	return p
}

// engage starts one program and waits until it is ready.
func (l *Lab) engage(ctx context.Context, argv ...string) (*crowd, error) {
	c := &crowd{}
	_, out, err := c.admit(l.command(ctx, argv...))
	if err != nil {
		return nil, err
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); strings.TrimSpace(line) != "ready" {
		c.dismiss()
		return nil, fmt.Errorf("%s did not become ready: %q, %w", title(argv), line, err)
	}
	return c, nil
}

// without is a probe that runs while the daemons are stopped. A daemon that looks around,
// for whatever reason, would keep a processor awake for those who sleep in what is
// measured instead of vrdma.
func (p Probe) without(daemons ...*daemon) Probe {
	measure := p.Measure
	p.Measure = func(ctx context.Context) (Reading, error) {
		for _, d := range daemons {
			if err := d.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
				return Reading{}, fmt.Errorf("cannot stop the daemon: %w", err)
			}
			defer d.cmd.Process.Signal(syscall.SIGCONT)
		}
		return measure(ctx)
	}
	return p
}
