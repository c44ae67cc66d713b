package credentials

import (
	"bytes"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// MachineName returns what who started the QEMU behind conn calls its virtual machine (-name); "": nothing, or
// nobody can tell. It is for people to read: QEMU's user chose it.
func MachineName(conn syscall.Conn, pid int) (name string) {
	err := whileThere(conn, pid, func() error {
		f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/cmdline")
		if err != nil {
			return err
		}
		defer f.Close()
		line, err := io.ReadAll(io.LimitReader(f, longestLine)) // the process says how long it is
		name = machineName(line)
		return err
	})
	if err != nil {
		return ""
	}
	return name
}

const (
	longestName = 64        // that is shown of a name
	longestLine = 128 << 10 // that is read of a command line
)

// machineName finds the name in a command line of QEMU: -name NAME,… or -name guest=NAME,…; a comma in the name is two.
func machineName(line []byte) string {
	value := ""
	args := bytes.Split(line, []byte{0})
	for i, a := range args[:len(args)-1] {
		if s := string(a); s == "-name" || s == "--name" {
			value = string(args[i+1])
		}
	}
	const comma = "\x00" // no argument has one
	for i, part := range strings.Split(strings.ReplaceAll(value, ",,", comma), ",") {
		key, v, found := strings.Cut(part, "=")
		if !found && i == 0 {
			key, v = "guest", part
		}
		if key != "guest" {
			continue
		}
		v = strings.Map(func(r rune) rune {
			if r < ' ' || r > '~' {
				return -1
			}
			return r
		}, strings.ReplaceAll(v, comma, ","))
		return v[:min(len(v), longestName)]
	}
	return ""
}
