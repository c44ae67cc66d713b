package routes

import (
	"encoding/binary"
	"errors"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A netlink socket in another namespace can receive messages that are not from the kernel: processes with privileges there can
// send any number of messages to it. So only messages of the kernel (port 0) with the request's sequence number count, and the
// time for an answer is limited. The rest of an old answer has an old sequence number.

const (
	// askTime and dumpTime limit the time for an answer. The kernel answers at once.
	askTime  = time.Second
	dumpTime = 2 * time.Second
	// mostMessages limits the number of messages read for one answer, whatever their sender.
	mostMessages = 1 << 12
)

var (
	errNoAnswer = errors.New("netlink: no answer")
	// errChanged means that the data changed while the kernel listed it.
	errChanged = errors.New("netlink: it changes all the time")
)

// questions is the last sequence number.
var questions atomic.Uint32

// question sends a request and returns its sequence number.
func question(fd int, kind, flags uint16, body []byte) (uint32, error) {
	seq := questions.Add(1)
	msg := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	msg = binary.NativeEndian.AppendUint16(msg, kind)
	msg = binary.NativeEndian.AppendUint16(msg, unix.NLM_F_REQUEST|flags)
	msg = binary.NativeEndian.AppendUint32(msg, seq)
	msg = append(append(msg, 0, 0, 0, 0), body...)
	return seq, unix.Sendto(fd, msg, unix.MSG_DONTWAIT, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
}

// answer calls each with the messages of an answer, until each returns false.
func answer(fd int, seq uint32, buf []byte, within time.Duration, each func(*syscall.NetlinkMessage) bool) error {
	end := time.Now().Add(within)
	for range mostMessages {
		left := time.Until(end)
		if left <= 0 {
			break
		}
		wait := unix.NsecToTimeval(max(left, time.Millisecond).Nanoseconds())
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait)
		n, from, err := unix.Recvfrom(fd, buf, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		if sa, ok := from.(*unix.SockaddrNetlink); !ok || sa.Pid != 0 {
			continue
		}
		list, err := syscall.ParseNetlinkMessage(buf[:n])
		if err != nil {
			return err
		}
		for i := range list {
			if m := &list[i]; m.Header.Seq == seq && !each(m) {
				return nil
			}
		}
	}
	return unix.EAGAIN
}

// askAt is ask on an existing socket, which nothing else uses meanwhile.
func askAt(fd int, kind uint16, body []byte) (m *syscall.NetlinkMessage, err error) {
	seq, err := question(fd, kind, 0, body)
	if err != nil {
		return nil, err
	}
	if err := answer(fd, seq, make([]byte, 8192), askTime, func(a *syscall.NetlinkMessage) bool { m = a; return false }); err != nil {
		return nil, err
	}
	if m.Header.Type == unix.NLMSG_ERROR {
		return nil, errorIn(m)
	}
	return m, nil
}

// errorIn returns the error in an NLMSG_ERROR message.
func errorIn(m *syscall.NetlinkMessage) error {
	if len(m.Data) >= 4 {
		if e := int32(binary.NativeEndian.Uint32(m.Data)); e < 0 {
			return syscall.Errno(-e)
		}
	}
	return errNoAnswer
}

// dump requests everything of a kind, whose messages have a header of the given size. After an error, the socket may still contain
// a part of the answer and must not be used again.
func dump(fd int, kind uint16, header int, each func(*syscall.NetlinkMessage)) error {
	seq, err := question(fd, kind, unix.NLM_F_DUMP, make([]byte, header))
	if err != nil {
		return err
	}
	var said error
	err = answer(fd, seq, make([]byte, 64<<10), dumpTime, func(m *syscall.NetlinkMessage) bool {
		if m.Header.Flags&unix.NLM_F_DUMP_INTR != 0 {
			said = errChanged
		}
		switch {
		case m.Header.Type == unix.NLMSG_DONE:
			return false
		case m.Header.Type == unix.NLMSG_ERROR:
			said = errorIn(m)
			return false
		case len(m.Data) >= header:
			each(m)
		}
		return true
	})
	return errors.Join(err, said)
}
