package credentials

import (
	"bytes"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// MachineName returns the name of the virtual machine of the QEMU behind conn (-name); "" if it has none or it is unknown. It is
// only for display: QEMU's user chose it.
func MachineName(conn syscall.Conn, pid int) (name string) {
	err := whileThere(conn, pid, func() error {
		f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/cmdline")
		if err != nil {
			return err
		}
		defer f.Close()
		line, err := io.ReadAll(io.LimitReader(f, longestLine)) // the process controls the length
		name = machineName(line)
		return err
	})
	if err != nil {
		return ""
	}
	return name
}

const (
	longestName = 64        // characters of a name that are shown
	longestLine = 128 << 10 // bytes of a command line that are read
)

// machineName finds the name in a QEMU command line: -name NAME,… or -name guest=NAME,…; a doubled comma is a comma of the name.
func machineName(line []byte) string {
	value := ""
	args := bytes.Split(line, []byte{0})
	for i, a := range args[:len(args)-1] {
		if s := string(a); s == "-name" || s == "--name" {
			value = string(args[i+1])
		}
	}
	const comma = "\x00" // occurs in no argument
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
