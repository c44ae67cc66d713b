package transport

// Path is what the engine knows of the way to a queue pair's peer. The zero Path leads
// to a queue pair of the same host: nothing is lost there, and whoever sends has seen
// the peer receive.
type Path struct {
	// Remote: packets travel to another host. They may be lost, marked or late, and
	// wait in a buffer of the receiver's.
	Remote bool
	// Own: the peer is a vrdma host. What rxe or a NIC would do is then known rather
	// than assumed.
	Own bool
	// MaxBurst is the most bytes of payload in one burst; 0 means Config.MaxBurst.
	MaxBurst uint32
	// Window is the most bytes that are sent or asked for and not yet acknowledged or
	// answered; 0 means 512 KiB. A congested path is given less. It does not count
	// where nothing is acknowledged (UC, UD), nor on a local path.
	Window uint32
}

const (
	defaultPathWindow = 512 << 10
	// firstWindow is what a path is given before anything is known of it.
	firstWindow = 128 << 10
)

// SetPath says how the peer is reached. It may be called at any time, and what is in flight
// stays so; only Remote must not change while requests are outstanding. When it changes,
// everything that was learnt of the path is forgotten.
func (q *QP) SetPath(p Path) {
	if p.Window == 0 {
		p.Window = defaultPathWindow
	}
	c := &q.common
	fresh, before := p.Remote != c.Path.Remote, c.Path.Window
	c.Path = p
	if fresh {
		q.cnp = notifier{}
		q.req.CC.start(&p, q.req.Una)
		q.req.Loss.BackAt = 0
		c.Pace = pacer{}
		if p.Remote {
			c.Pace.start(c.Conf.Type)
		}
	} else if p.Remote {
		q.req.CC.widen(before, p.Window)
	}
	q.fitPath()
}

// Path is how the peer is reached.
func (q *QP) Path() Path { return q.common.Path }

// fitPath works out what the halves keep to, after path or MTU changed.
func (q *QP) fitPath() {
	c := &q.common
	c.Burst = c.Conf.MaxBurst
	if c.Path.MaxBurst != 0 {
		c.Burst = c.Path.MaxBurst
	}
	c.Burst = max(c.Burst, c.Attr.MTU)
	q.req.fitPath(c)
}
