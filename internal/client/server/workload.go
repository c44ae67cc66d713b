package server

import (
	"cmp"
	"fmt"
	"syscall"
	"time"

	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/protocol"
)

// A workload is all programs of one network namespace: a container, a pod, or all programs of the host. A declared NIC
// belongs to one workload at a time, as an interface would, because its address is that workload's. The default NIC has
// the host's addresses, and serves every program that may open it.
//
// The namespace is identified by its cookie, which the kernel keeps with the client's socket. The kernel never uses a
// cookie twice, and the client cannot choose it. Kernels before 5.14 do not return cookies, and the rule is not
// enforced there.

// handover is how long a workload waits for the previous one: the daemon notices the end of a killed container a moment
// after the engine may have started the next.
const handover = 3 * time.Second

// occupy makes a user a program of its workload, and connects the NIC to the workload's namespace. It fails if another workload has the
// NIC.
func (d *listener) occupy(c *protocol.Conn, client ClientEnd, who *credentials.Caller) error {
	workload, err := d.occupyOnly(c, client, who)
	if err != nil {
		return err
	}
	return d.attach(c, who, workload)
}

// occupyOnly is occupy without the connection to the workload's namespace, which attach makes.
func (d *listener) occupyOnly(c *protocol.Conn, client ClientEnd, who *credentials.Caller) (workload uint64, err error) {
	var container string
	if d.Exclusive {
		workload, container = client.Workload(who)
		if name := d.srv.names.get(workload); name != "" {
			container = name
		}
	}
	wait := cmp.Or(d.srv.cfg.handover, handover)
	for end := time.Now().Add(wait); ; time.Sleep(wait / 300) {
		holder := d.take(c, workload, container)
		if holder == "" {
			return workload, nil
		}
		if time.Now().Before(end) {
			continue
		}
		why := fmt.Errorf("it is %s, in another network namespace: a NIC has one workload at a time; end that one, or use another NIC", holder)
		d.srv.log.Warn("a process may not use a NIC", "nic", d.NIC.Name, "pid", who.Pid, "uid", who.UID, "program", who.Program, "why", why)
		d.srv.admission.refused(d.NIC, who, why)
		return workload, refusal(syscall.EBUSY, "NIC %s is busy: %v", d.NIC.Name, why)
	}
}

// take makes a user a program of a workload. If another workload has the NIC, take describes how and which.
func (d *listener) take(c *protocol.Conn, workload uint64, container string) (holder string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	g := d.users[c]
	if g == nil {
		return "" // the listener is being closed
	}
	if b := d.boundElsewhere(workload); b != nil {
		return "bound to " + b.Name
	}
	if name, over := d.ended[workload]; over && len(d.bound) == 0 {
		return "not for what is left of " + name + ", which is gone"
	}
	if workload != 0 {
		for _, other := range d.users {
			if other.process && other.workload != 0 && other.workload != workload {
				return "in use by " + other.String()
			}
		}
	}
	// The devices of an ended program may remain for a moment.
	if d.attached != 0 && d.attached != workload && d.usedLocked(c) {
		return "in use by a program that is ending"
	}
	if !g.process && d.Programs != nil {
		d.Programs.Add(1)
	}
	g.process, g.workload, g.Container = true, workload, container
	return ""
}

// usedLocked reports whether a user other than c has the NIC or one of its devices. mu is held.
func (d *listener) usedLocked(c *protocol.Conn) bool {
	for o, g := range d.users {
		if o != c && (g.process || g.device) {
			return true
		}
	}
	return false
}

// attach connects the NIC to the namespace of the workload that has just taken it.
func (d *listener) attach(c *protocol.Conn, who *credentials.Caller, workload uint64) error {
	if d.Attach == nil {
		return nil
	}
	d.attaching.Lock()
	defer d.attaching.Unlock()
	d.mu.Lock()
	before := d.attached
	d.attached = 0
	d.mu.Unlock()
	if before != workload {
		if before != 0 {
			d.Detach()
		}
		if err := d.Attach(c); err != nil {
			d.srv.log.Warn("a NIC cannot have the network of who opens it", "nic", d.NIC.Name, "pid", who.Pid, "uid", who.UID, "program", who.Program, "why", err)
			d.srv.admission.refused(d.NIC, who, err)
			return refusal(protocol.Errno(err, syscall.EADDRNOTAVAIL), "NIC %s: %v", d.NIC.Name, err)
		}
	}
	d.mu.Lock()
	d.attached = workload
	d.mu.Unlock()
	return nil
}

// detach undoes attach if the NIC has no users.
func (d *listener) detach() {
	d.attaching.Lock()
	defer d.attaching.Unlock()
	d.mu.Lock()
	idle := d.attached != 0 && !d.usedLocked(nil)
	if idle {
		d.attached = 0
	}
	d.mu.Unlock()
	if idle {
		d.Detach()
	}
}
