package daemon

import (
	"errors"
	"runtime"
	"time"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/exit"
	"vrdma.dev/vrdma/internal/tenancy/control"
	"vrdma.dev/vrdma/internal/tenancy/store"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// plane is the control plane from the moment it is open. The provisioner and the server exist before, because the plane
// needs them. It implements provision.Placement.
type plane struct {
	*control.Plane               // set before opened is closed
	opened         chan struct{} // closed when Plane is set
}

func newPlane() *plane { return &plane{opened: make(chan struct{})} }

// claimTimeout is how long a program waits for the control plane when the daemon starts: generous, because the machine may be busy.
const claimTimeout = 20 * time.Second

// Claim implements provision.Placement. Virtual machines can connect before the plane is open: they wait for it.
func (p *plane) Claim(k tenant.Key) error {
	select {
	case <-p.opened:
		return p.Plane.Claim(k)
	case <-time.After(claimTimeout):
		return errors.New("the daemon is not ready yet: try again")
	}
}

// Release implements provision.Placement.
func (p *plane) Release(k tenant.Key) error {
	select {
	case <-p.opened:
		return p.Plane.Release(k)
	default:
		return nil // nothing was claimed
	}
}

// Generation is the revision of the store whose policies are in force; 0: the plane is not open yet.
func (p *plane) Generation() int64 {
	select {
	case <-p.opened:
		return p.Plane.Generation()
	default:
		return 0
	}
}

// quotas are what tenants hold; none before the plane is open.
func (p *plane) quotas() []budget.Quota {
	select {
	case <-p.opened:
		return p.Plane.Quotas()
	default:
		return nil
	}
}

// hosts counts the hosts of a shared store by state.
func (p *plane) hosts() map[string]int {
	out := make(map[string]int)
	select {
	case <-p.opened:
		for state, n := range p.HostStates() {
			out[string(state)] = n
		}
	default:
	}
	return out
}

// openPlane opens the control plane, which creates the declared NICs.
func (d *daemon) openPlane() error {
	opened, err := control.Open(control.Config{
		Store: d.store.Store, Provisioner: d.provisioner, Host: d.host, Self: d.self(), Identity: identity(d.seed), Log: d.log,
		Tenants: d.server, Workloads: d.workloads, Journal: d.journal, Budget: d.budget, Boot: d.from.boot(),
	})
	if err != nil {
		return exit.Lacks("%w", err)
	}
	d.plane.Plane = opened
	close(d.plane.opened)
	d.server.ServeObjects(opened)
	if d.from == nil { // otherwise directories may be the other daemon's
		d.provisioner.Sweep() // every declared NIC exists
	}
	return nil
}

// self is this host as others reach it.
func (d *daemon) self() tenant.HostSpec {
	u := d.between.at()
	var ports []uint16
	if _, shared := d.store.Store.(store.Remote); shared {
		ports = d.between.hold()
	}
	return tenant.HostSpec{
		SourcePorts: ports,
		Addresses:   u.addrs, Port: int(u.port), Version: d.Version, Features: d.engine.Features(),
		Capacity:  tenant.Capacity{MTU: u.mtu, Processors: runtime.NumCPU(), Memory: tenant.Bytes(budget.ThisMachine().Memory)},
		PublicKey: d.between.key.public(d.log), TunnelPort: int(d.between.key.port),
	}
}
