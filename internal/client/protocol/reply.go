package protocol

import "errors"

// Store is struct vrdma_store and its bytes: data to write into the client's memory.
type Store struct {
	Address uint64
	Data    []byte
}

// FD is struct vrdma_fd: the address at which the client stores a descriptor's number.
type FD struct {
	Address uint64
	Kind    uint32
	ID      uint32
}

// Ahead is struct vrdma_ahead and its bytes: the answer to an expected command.
type Ahead struct {
	Command, ID, Key uint32
	Revision         uint64 // revision of the identifier for which the answer is valid
	Data             []byte
}

// Reply is a decoded reply. Stores and Ahead alias its message.
type Reply struct {
	Error  int32
	Stores []Store
	FDs    []FD
	Ahead  []Ahead
}

// Parse decodes a reply and reuses the storage of r's slices.
func (r *Reply) Parse(b []byte) error {
	r.Stores, r.FDs, r.Ahead = r.Stores[:0], r.FDs[:0], r.Ahead[:0]
	if len(b) < ReplySize {
		return malformed("a reply has at least %d bytes, got %d", ReplySize, len(b))
	}
	r.Error = int32(order.Uint32(b[0:]))
	stores, fds, ahead := order.Uint32(b[4:]), order.Uint32(b[8:]), order.Uint32(b[12:])
	if fds > MaxFDs {
		return malformed("%d descriptors, at most %d are allowed", fds, MaxFDs)
	}
	b = b[ReplySize:]
	for range stores {
		if len(b) < StoreSize {
			return malformed("%d stores announced, the message ends after %d", stores, len(r.Stores))
		}
		address, n := order.Uint64(b[0:]), uint64(order.Uint32(b[8:]))
		b = b[StoreSize:]
		if padded(n) > uint64(len(b)) {
			return malformed("a store of %d bytes, the message has %d more", n, len(b))
		}
		r.Stores = append(r.Stores, Store{Address: address, Data: b[:n:n]})
		b = b[padded(n):]
	}
	if uint64(len(b)) < uint64(fds)*FDSize {
		return malformed("%d bytes after the stores, %d descriptors need %d", len(b), fds, fds*FDSize)
	}
	for range fds {
		r.FDs = append(r.FDs, FD{Address: order.Uint64(b[0:]), Kind: order.Uint32(b[8:]), ID: order.Uint32(b[12:])})
		b = b[FDSize:]
	}
	for range ahead {
		if len(b) < AheadHeader || padded(uint64(order.Uint32(b[12:]))) > uint64(len(b)-AheadHeader) {
			return malformed("%d answers ahead announced, the message ends after %d", ahead, len(r.Ahead))
		}
		n := order.Uint32(b[12:])
		r.Ahead = append(r.Ahead, Ahead{
			Command: order.Uint32(b[0:]), ID: order.Uint32(b[4:]), Key: order.Uint32(b[8:]), Revision: order.Uint64(b[16:]),
			Data: b[AheadHeader : AheadHeader+n : AheadHeader+n],
		})
		b = b[AheadHeader+padded(uint64(n)):]
	}
	if len(b) > 0 {
		return malformed("%d bytes after the end of a reply", len(b))
	}
	return nil
}

func padded(n uint64) uint64 { return (n + 7) &^ 7 }

// ErrTooLong means that a message does not fit into a packet.
var ErrTooLong = errors.New("message longer than a packet")

// ReplyBuilder assembles a reply in place. The zero value is ready after Reset.
type ReplyBuilder struct {
	buf    []byte
	stores uint32
	fds    []FD
	ahead  []byte // answers in advance, and their number
	aheads uint32
	err    error
}

// Reset starts a reply in buf's storage.
func (r *ReplyBuilder) Reset(buf []byte) {
	r.buf = append(buf[:0], make([]byte, ReplySize)...)
	r.stores, r.fds, r.ahead, r.aheads, r.err = 0, r.fds[:0], r.ahead[:0], 0, nil
}

// Store asks the client to write data at address. data is copied.
func (r *ReplyBuilder) Store(address uint64, data []byte) {
	if len(r.buf)+StoreSize+len(data)+8+MaxFDs*FDSize > MaxMessage {
		r.err = ErrTooLong
		return
	}
	r.buf = order.AppendUint64(r.buf, address)
	r.buf = order.AppendUint32(r.buf, uint32(len(data)))
	r.buf = order.AppendUint32(r.buf, 0)
	r.buf = append(r.buf, data...)
	for len(r.buf)%8 != 0 {
		r.buf = append(r.buf, 0)
	}
	r.stores++
}

// FD announces a descriptor; descriptors are sent with the message in the order of the calls.
func (r *ReplyBuilder) FD(f FD) {
	if len(r.fds) == MaxFDs {
		r.err = ErrTooLong
		return
	}
	r.fds = append(r.fds, f)
}

// Ahead adds the answer to an expected command. a.Data is copied.
func (r *ReplyBuilder) Ahead(a Ahead) {
	if len(r.buf)+MaxFDs*FDSize+len(r.ahead)+AheadHeader+len(a.Data)+8 > MaxMessage {
		r.err = ErrTooLong
		return
	}
	r.ahead = order.AppendUint32(r.ahead, a.Command)
	r.ahead = order.AppendUint32(r.ahead, a.ID)
	r.ahead = order.AppendUint32(r.ahead, a.Key)
	r.ahead = order.AppendUint32(r.ahead, uint32(len(a.Data)))
	r.ahead = order.AppendUint64(r.ahead, a.Revision)
	r.ahead = append(r.ahead, a.Data...)
	for len(r.ahead)%8 != 0 {
		r.ahead = append(r.ahead, 0)
	}
	r.aheads++
}

// Finish returns the message. error is 0 or a positive errno.
func (r *ReplyBuilder) Finish(errno int32) ([]byte, error) {
	if r.err != nil {
		return nil, r.err
	}
	order.PutUint32(r.buf[0:], uint32(errno))
	order.PutUint32(r.buf[4:], r.stores)
	order.PutUint32(r.buf[8:], uint32(len(r.fds)))
	for _, f := range r.fds {
		r.buf = order.AppendUint64(r.buf, f.Address)
		r.buf = order.AppendUint32(r.buf, f.Kind)
		r.buf = order.AppendUint32(r.buf, f.ID)
	}
	order.PutUint32(r.buf[12:], r.aheads)
	r.buf = append(r.buf, r.ahead...)
	return r.buf, nil
}

// WithFD adds a descriptor to a finished reply without descriptors and without answers in advance.
func WithFD(reply []byte, f FD) []byte {
	order.PutUint32(reply[8:], 1)
	reply = order.AppendUint64(reply, f.Address)
	reply = order.AppendUint32(reply, f.Kind)
	return order.AppendUint32(reply, f.ID)
}
