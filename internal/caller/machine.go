package caller

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// MachineName is what who started the QEMU behind conn calls its virtual machine (-name); "": nothing, or
// nobody can tell. It is for people to read: QEMU's user chose it.
func MachineName(conn syscall.Conn, pid int) (name string) {
	err := whileThere(conn, pid, func() error {
		line, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
		name = machineName(line)
		return err
	})
	if err != nil {
		return ""
	}
	return name
}

// longestName bounds what is shown of a name.
const longestName = 64

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
