package course

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// leave is the key that ends a console: Ctrl-].
const leave = 0x1d

// Console connects a terminal to a machine's serial port, until the user presses Ctrl-], the input ends or the machine does.
func Console(path string, in *os.File, out io.Writer) error {
	c, err := net.Dial("unix", path)
	if err != nil {
		return fmt.Errorf("no console at %s: %w; vrdma lab vms prints the paths", path, err)
	}
	defer c.Close()
	if restore, err := raw(in); err == nil {
		defer restore()
		fmt.Fprint(out, "Ctrl-] leaves the console; Enter shows the prompt.\r\n")
	}
	gone := make(chan error, 2)
	go func() {
		_, err := io.Copy(out, c)
		gone <- err
	}()
	go func() { gone <- keys(in, c) }()
	return <-gone
}

// keys sends what is typed, until the key that leaves.
func keys(in io.Reader, to io.Writer) error {
	b := make([]byte, 256)
	for {
		n, err := in.Read(b)
		for i, k := range b[:n] {
			if k == leave {
				n = i
				err = io.EOF
				break
			}
		}
		if _, werr := to.Write(b[:n]); werr != nil {
			return werr
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// raw passes every key through, also Ctrl-C. It fails if in is not a terminal.
func raw(in *os.File) (restore func(), err error) {
	fd := int(in.Fd())
	old, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, err
	}
	t := *old
	t.Iflag &^= unix.BRKINT | unix.ICRNL | unix.INPCK | unix.ISTRIP | unix.IXON
	t.Lflag &^= unix.ECHO | unix.ICANON | unix.IEXTEN | unix.ISIG
	t.Oflag &^= unix.OPOST
	t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &t); err != nil {
		return nil, err
	}
	return func() { unix.IoctlSetTermios(fd, unix.TCSETS, old) }, nil
}
