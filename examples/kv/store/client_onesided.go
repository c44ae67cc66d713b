package store

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"vrdma.dev/vrdma/verbs"
)

// attempts is how often a slot is read before the client asks the server. One torn read is chance; many mean that the key is written
// all the time.
const attempts = 32

// OneSided is a client that reads with RDMA READs, without the server process. Its updates are RPCs.
type OneSided struct {
	*RPC
	// Torn counts reads that were repeated, Asked those that fell back to the server.
	Torn, Asked uint64

	want int // bytes of a slot to read: the size of the last record
}

// DialOneSided connects to a server.
func (d *Dialer) DialOneSided(ctx context.Context, addr string) (*OneSided, error) {
	c, err := d.DialRPC(ctx, addr)
	if err != nil {
		return nil, err
	}
	return &OneSided{RPC: c, want: valueAt + c.MaxValue()}, nil
}

// Get implements Client: it reads the server's memory.
func (c *OneSided) Get(ctx context.Context, key uint64, dst []byte) (int, uint64, error) {
	if key >= uint64(c.table.keys) {
		return 0, 0, fmt.Errorf("key %d: %w", key, ErrNoKey)
	}
	for range attempts {
		slot, err := c.read(ctx, key, c.want)
		if err != nil {
			return 0, 0, err
		}
		value, version, err := readSlot(slot, key)
		switch {
		case err == nil:
			if len(value) > len(dst) {
				return 0, 0, errShort
			}
			c.want = valueAt + len(value)
			return copy(dst, value), version, nil
		case errors.Is(err, errCut): // longer than the last one
			c.want = valueAt + c.MaxValue()
		default:
			c.Torn++
			runtime.Gosched() // the writer may need this processor
		}
	}
	c.Asked++
	return c.RPC.Get(ctx, key, dst)
}

// read reads the first n bytes of a slot.
func (c *OneSided) read(ctx context.Context, key uint64, n int) ([]byte, error) {
	if err := c.ready(); err != nil {
		return nil, err
	}
	err := c.conn.QP().PostSend(&verbs.SendWR{
		ID: idRead, Op: verbs.Read, Flags: verbs.Signaled,
		SGL:        []verbs.SGE{c.mr.Slice(c.slotAt(), n)},
		RemoteAddr: c.table.addr + key*uint64(slotSize(c.MaxValue())), RKey: c.table.rkey,
	})
	if err != nil {
		return nil, err
	}
	if _, err := c.await(ctx, c.sent, idRead); err != nil {
		return nil, err
	}
	return c.mr.Bytes()[c.slotAt() : c.slotAt()+n], nil
}
