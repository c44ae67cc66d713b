package protocol

// Extent is struct vrdma_extent: the kind of memory in a part of a buffer.
type Extent struct {
	Start, Length uint64
	Kind, Prot    uint32
}

// Request is a decoded request. Command aliases its message; Extents reuses the slice passed to Parse.
type Request struct {
	Op      Op
	Extents []Extent
	Command []byte
}

// Parse decodes a request and reuses the storage of r.Extents.
func (r *Request) Parse(b []byte) error {
	r.Extents, r.Command = r.Extents[:0], nil
	if len(b) < RequestSize {
		return malformed("a request has at least %d bytes, got %d", RequestSize, len(b))
	}
	r.Op = Op(order.Uint32(b[0:]))
	commandLen, n := uint64(order.Uint32(b[4:])), uint64(order.Uint32(b[8:]))
	b = b[RequestSize:]
	if want := n*ExtentSize + commandLen; want != uint64(len(b)) {
		return malformed("%d extents and a command of %d bytes make %d bytes, got %d", n, commandLen, want, len(b))
	}
	for range n {
		r.Extents = append(r.Extents, Extent{
			Start:  order.Uint64(b[0:]),
			Length: order.Uint64(b[8:]),
			Kind:   order.Uint32(b[16:]),
			Prot:   order.Uint32(b[20:]),
		})
		b = b[ExtentSize:]
	}
	r.Command = b
	return nil
}

// Append appends the encoded r.
func (r *Request) Append(b []byte) []byte {
	b = order.AppendUint32(b, uint32(r.Op))
	b = order.AppendUint32(b, uint32(len(r.Command)))
	b = order.AppendUint32(b, uint32(len(r.Extents)))
	b = order.AppendUint32(b, 0)
	for _, e := range r.Extents {
		b = order.AppendUint64(b, e.Start)
		b = order.AppendUint64(b, e.Length)
		b = order.AppendUint32(b, e.Kind)
		b = order.AppendUint32(b, e.Prot)
	}
	return append(b, r.Command...)
}
