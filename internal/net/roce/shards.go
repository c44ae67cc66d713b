package roce

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/net/wire"
)

// Several loops receive at one address. Each has a shard: a socket of its own at the same port (SO_REUSEPORT). The kernel
// passes a packet to a shard by a classic BPF program, which needs no privilege. The program reads the number of the
// destination queue pair:
//
//	UDP payload: BTH │ … │ destination queue pair, 24 bits │ …
//	                                        └ low 6 bits: the bucket ──▶ table ──▶ shard
//
// A queue pair's number cannot change. The table can, and the program is replaced while the sockets are open. The first
// shard receives packets for queue pair 1 and all that the program cannot read.
//
// A train of packets that leaves in one call (GSO), or that the kernel merges (GRO), arrives at the shard of its first
// packet. A sender therefore chooses the source port by the low 3 bits of the destination's number (Port.Send), and
// packets from different ports are in different trains. A receiver that gives each shard buckets with the same low 3 bits
// gets trains for one shard, whichever program sends them. Its owner hands over packets that arrive at another shard.
//
// All shards send from the same sockets, because other hosts accept only the ports that this host has announced.

// Buckets is the number of steering buckets.
const Buckets = 64

// SourceClasses is the number of source ports by which a sender separates the trains for different buckets.
const SourceClasses = poolSize

// BucketOf returns the bucket of a queue pair.
func BucketOf(qp uint32) int { return int(qp % Buckets) }

// A SteeringTable is the shard of each bucket.
type SteeringTable [Buckets]uint8

// A Steered is a Bind with several shards.
type Steered interface {
	// Shards returns the number of shards; the bind itself is the first.
	Shards() int
	// Shard returns one of the others. The bind closes it.
	Shard(i int) Shard
	// Steer changes the table.
	Steer(t *SteeringTable) error
}

// A Shard is a Bind for one loop.
type Shard interface {
	Bind
	// Descriptors returns the sockets that become readable when datagrams arrive.
	Descriptors() []int
}

// Shards returns the number of shards of the port's bind.
func (p *Port) Shards() int {
	if s, ok := p.bind.(Steered); ok {
		return s.Shards()
	}
	return 1
}

// Shard returns a port on one of the other shards, and the descriptors of which one is readable when packets have arrived
// there.
func (p *Port) Shard(i int) (*Port, func() []int) {
	l := p.bind.(Steered).Shard(i)
	q := NewPort(l)
	q.network = p.network
	return q, l.Descriptors
}

// Steer changes which shard receives the packets of a bucket.
func (p *Port) Steer(t *SteeringTable) error {
	if s, ok := p.bind.(Steered); ok {
		return s.Steer(t)
	}
	return nil
}

// Shards implements Steered. There is one shard if the kernel has refused the program.
func (u *UDP) Shards() int {
	for i := range u.ends {
		if len(u.ends[i].more) > 0 {
			return u.opts.Shards
		}
	}
	return 1
}

// Shard implements Steered.
func (u *UDP) Shard(i int) Shard { return newShard(u, i) }

// Steer implements Steered.
func (u *UDP) Steer(t *SteeringTable) (err error) {
	for i := range u.ends {
		if e := &u.ends[i]; e.fd >= 0 && e.grouped {
			err = errors.Join(err, e.steer(t))
		}
	}
	return err
}

// steer changes the program of an endpoint. Buckets of shards that it does not have go to the first.
func (e *endpoint) steer(t *SteeringTable) error {
	at := *t
	for b, shard := range at {
		if int(shard) > len(e.more) {
			at[b] = 0
		}
	}
	code := at.program()
	prog := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	if err := unix.SetsockoptSockFprog(e.fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &prog); err != nil {
		return fmt.Errorf("the kernel refuses the program that steers packets at %v: %w", e.local, err)
	}
	return nil
}

// program returns a classic BPF program that finds the shard of a packet by a binary search in the table.
func (t *SteeringTable) program() []unix.SockFilter {
	const destQP = 4 // offset of the word that ends with the number, see wire.BTH
	return append([]unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: destQP}, // shorter packets: the kernel returns 0
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: 0xffffff},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: wire.GSIQP, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: Buckets - 1},
	}, search(t[:], 0)...)
}

// search returns instructions that return the shard of the bucket in the accumulator. shards has the shards of the buckets from
// first on.
func search(shards []uint8, first uint32) []unix.SockFilter {
	same := true
	for _, l := range shards {
		same = same && l == shards[0]
	}
	if same {
		return []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: uint32(shards[0])}}
	}
	half := len(shards) / 2
	low, high := search(shards[:half], first), search(shards[half:], first+uint32(half))
	code := []unix.SockFilter{{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, K: first + uint32(half), Jt: uint8(len(low))}}
	return append(append(code, low...), high...)
}

// openShards opens the sockets of the other shards of an endpoint. If the kernel refuses, the endpoint has one shard.
//
// The first socket is bound without SO_REUSEPORT, so that a second daemon fails as ever. A program of the daemon's own user
// can join the group later. It gets no packets unless it replaces the program; such a program could as well trace the daemon.
func (u *UDP) openShards(e *endpoint) {
	if u.opts.Shards <= 1 || u.opts.Socket != nil {
		return
	}
	err := unix.SetsockoptInt(e.fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	for err == nil && len(e.more) < u.opts.Shards-1 {
		var fd int
		if fd, err = u.openShard(e); err != nil {
			break
		}
		if e.more = append(e.more, fd); !e.grouped {
			e.grouped = true
			err = e.steer(&SteeringTable{}) // else the kernel spreads packets over the sockets
		}
	}
	if err != nil {
		e.closeShards()
	}
}

// openShard opens one more socket at the port of an endpoint.
func (u *UDP) openShard(e *endpoint) (int, error) {
	fd, err := u.socket(e.family())
	if err != nil {
		return -1, err
	}
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	if err == nil {
		err = unix.Bind(fd, e.name(u.opts.Port))
	}
	if err == nil {
		err = u.prepareReceive(e, fd)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// inheritShards makes shards of sockets that another daemon has left, in their order, and closes those that are too many.
// They stay in the group until that daemon has ended: the sockets before them keep their numbers.
func (u *UDP) inheritShards(e *endpoint, fds []int) {
	e.grouped = len(fds) > 0
	for i, fd := range fds {
		if i < u.opts.Shards-1 {
			e.more = append(e.more, fd)
		} else {
			unix.Close(fd)
		}
	}
	u.openShards(e)
}

// closeShards closes the last first, because closing another would change the number of the last.
func (e *endpoint) closeShards() {
	for i := len(e.more) - 1; i >= 0; i-- {
		unix.Close(e.more[i])
	}
	e.more = nil
}

// receiver is the socket of a shard; -1: the shard has none.
func (e *endpoint) receiver(shard int) int {
	switch {
	case shard == 0:
		return e.fd
	case shard <= len(e.more):
		return e.more[shard-1]
	}
	return -1
}
