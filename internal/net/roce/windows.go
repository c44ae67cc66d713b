package roce

// widestWindow is the largest number of bytes that a queue pair may have in flight. Sender and receiver are two threads, and each
// loses its processor now and then. The bytes in flight must last until the other thread runs again, or both wait for each other.
// Between 128 KiB and 2 MiB the rate of one stream grows up to 1 MiB. A larger window only delays the packets behind the stream.
const widestWindow = 1 << 20

// Windows returns the numbers of bytes that one queue pair and all queue pairs together may have in flight through these sockets.
// They follow from the receive buffer: peers mostly have the same buffer, and several senders share it.
func (u *UDP) Windows() (window, flight uint32) {
	window = uint32(min(max(u.ReceiveBuffer()/8, 64<<10), widestWindow))
	return window, max(uint32(u.ReceiveBuffer()/4), window)
}
