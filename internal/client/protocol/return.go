package protocol

// Return is struct vrdma_return, the command of an OpReturn request of a device: the event file that the client wants. Kind 0 means
// that it wants no more.
type Return struct {
	Kind, ID uint32
}

// ParseReturn decodes a Return.
func ParseReturn(b []byte) (r Return, err error) {
	if len(b) != ReturnSize {
		return r, malformed("a return has %d bytes, got %d", ReturnSize, len(b))
	}
	return Return{order.Uint32(b[0:]), order.Uint32(b[4:])}, nil
}

// Append appends the encoded r.
func (r Return) Append(b []byte) []byte {
	return order.AppendUint32(order.AppendUint32(b, r.Kind), r.ID)
}
