package engine

import (
	"reflect"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func shared(mem []byte, off int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&mem[off])) }

// addressOf is where b lies.
func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(&b[0])) }

// bytesAt is the n bytes at an address.
func bytesAt(at uintptr, n int) []byte {
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(nil), at)), n)
}

// contents is the memory of what p points to.
func contents(p any) []byte {
	v := reflect.ValueOf(p)
	return unsafe.Slice((*byte)(v.UnsafePointer()), v.Elem().Type().Size())
}

// futexWait sleeps on a word, as a client does.
func futexWait(word *atomic.Uint32, value uint32, most time.Duration) error {
	t := unix.NsecToTimespec(int64(most))
	const futexWait = 0
	if _, _, e := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWait, uintptr(value), uintptr(unsafe.Pointer(&t)), 0, 0); e != 0 {
		return e
	}
	return nil
}
