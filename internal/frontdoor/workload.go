package frontdoor

import (
	"cmp"
	"fmt"
	"syscall"
	"time"

	"vrdma/internal/caller"
	"vrdma/internal/protocol"
)

// A workload is all the programs of one network namespace: a container, a pod, or the programs of
// the host together. A declared NIC belongs to one workload at a time, as an interface would: its
// address is that workload's. The default NIC has the host's addresses, and is for all who may
// open it.
//
// The namespace is known by its cookie, which the kernel keeps with the client's socket: a number
// that is never used again, and that the client cannot choose. Kernels before 5.14 do not tell, and there
// the rule does not hold.

// handover is how long a workload waits for the one before it: of a container that was killed the daemon hears
// a moment later than whoever starts the next.
const handover = 3 * time.Second

// occupy makes a guest one who uses the NIC, and not only looks. It fails if another workload does.
func (d *door) occupy(c *protocol.Conn, l Line, who *caller.Caller) error {
	var workload uint64
	var container string
	if d.Alone {
		workload, container = l.Workload(who)
	}
	wait := cmp.Or(d.srv.cfg.handover, handover)
	for end := time.Now().Add(wait); ; time.Sleep(wait / 300) {
		holder := d.take(c, workload, container)
		if holder == nil {
			return nil
		}
		if time.Now().Before(end) {
			continue
		}
		why := fmt.Errorf("it is in use by %v, in another network namespace: a NIC has one workload at a time; end that one, or use another NIC", holder)
		d.srv.log.Warn("a process may not use a NIC", "nic", d.NIC.Name, "pid", who.Pid, "uid", who.UID, "program", who.Program, "why", why)
		if d.srv.cfg.Refused != nil {
			d.srv.cfg.Refused(d.NIC, who, why)
		}
		return refusal(syscall.EBUSY, "NIC %s is busy: %v", d.NIC.Name, why)
	}
}

// take makes a guest one of a workload, unless another workload has the NIC: then it returns one of
// its programs.
func (d *door) take(c *protocol.Conn, workload uint64, container string) *Guest {
	d.mu.Lock()
	defer d.mu.Unlock()
	g := d.guests[c]
	if g == nil {
		return nil // the door is being closed
	}
	if workload != 0 {
		for _, other := range d.guests {
			if other.process && other.workload != 0 && other.workload != workload {
				holder := *other
				return &holder
			}
		}
	}
	g.process, g.workload, g.Container = true, workload, container
	return nil
}
