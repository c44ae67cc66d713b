package transport

// Path is what the engine knows about the path to a queue pair's peer. The zero Path leads to a queue pair
// on the same host, where nothing is lost and delivery happens within Send.
type Path struct {
	// Remote means that the peer is on another host. Packets may be lost, marked or late, and wait in a
	// buffer of the receiver.
	Remote bool `cbor:"1,keyasint,omitempty"`
	// Own means that the peer is a vrdma host, whose behaviour is known. For rxe or a hardware NIC it is
	// assumed.
	Own bool `cbor:"2,keyasint,omitempty"`
	// MaxBurst is the maximum payload of one burst; 0 means Config.MaxBurst.
	MaxBurst uint32 `cbor:"3,keyasint,omitempty"`
	// Window is the maximum number of bytes that are sent or requested but not acknowledged or answered; 0
	// means 512 KiB. Congestion reduces it. It does not apply to UC and UD, nor to a local path.
	Window uint32 `cbor:"4,keyasint,omitempty"`
}

const (
	defaultPathWindow = 512 << 10
	// firstWindow is the initial window of a path.
	firstWindow = 128 << 10
)

// SetPath sets the path to the peer. It may be called at any time and does not affect packets in flight.
// But Remote must not change while requests are outstanding; when it changes, the congestion state is
// reset.
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

// Path returns the path to the peer.
func (q *QP) Path() Path { return q.common.Path }

// fitPath computes the limits of both halves after the path or the MTU changed.
func (q *QP) fitPath() {
	c := &q.common
	c.Burst = c.Conf.MaxBurst
	if c.Path.MaxBurst != 0 {
		c.Burst = c.Path.MaxBurst
	}
	c.Burst = max(c.Burst, c.Attr.MTU)
	q.req.CC.fit(c)
	if q.req.Una == q.req.Max {
		q.req.Chunk = q.req.CC.chunk(c, q.req.Chunk)
	}
}
